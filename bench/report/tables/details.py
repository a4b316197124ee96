"""What each setting of the short report opens on the page: its attempts, ranks and phases, why it failed, its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from bench.records.outcome import Result
from bench.report.naming import cell_name, row_name, setting
from bench.report.rows import Summary
from bench.report.summary import Newest
from bench.report.tables.brief import Setting
from bench.report.tables.show import Files, Verbatim, cell_key, in_brief
from bench.report.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Details:
    """Of one row of the table of settings."""

    name: str
    axes: Mapping[str, str]
    """The settings that differ within the report, in words."""
    folders: tuple[str, ...]
    """The folders of its attempts, from the folder of the page; empty for a report of several runs."""
    scripts: bool
    """Whether these hold command.sh, which runs the attempt again by hand."""
    parts: Sequence[Table | Verbatim]


def details(
    summary: Summary,
    one: Setting,
    results: Sequence[Result],
    files: Mapping[str, Files],
    newest: Newest,
    folder: PurePath | None,
    *,
    scripts: bool,
) -> Details:
    """Of one setting. The other arguments are those of a report: its ``files`` are the `logs`."""
    row = one.row
    own = [
        result
        for result in results
        if cell_key(summary, result) == one.shown.id.cell
        and (row is None or (result.attempt.batch_per_rank, result.attempt.short) == (row.batch_per_rank, row.short))
    ]
    return Details(
        name=row_name(summary, row) if row else cell_name(summary, one.shown),
        axes={name: setting(name, one.shown.settings.get(name)) for name in summary.columns},
        folders=() if folder is None else tuple(str(folder / "attempts" / result.attempt.slug) for result in own),
        scripts=scripts,
        parts=in_brief(own, files, newest, summary),
    )
