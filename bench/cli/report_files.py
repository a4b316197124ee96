"""Writes reports: a run's own reports, and the file of `bench report --output`."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report.render.formats import Format
    from bench.report.tables.sections import Report
    from bench.store.run_folder import Store


def write_reports(store: "Store") -> None:
    """`report.md` for a pull request, `report-full.md` with its plots, and `report.html`, in the run's own folder."""
    from bench.cli.collect import collect
    from bench.report.render.formats import FORMATS, FULL

    report = collect([store])
    for name, form in (("report.md", FORMATS["md"]), ("report-full.md", FULL), ("report.html", FORMATS["html"])):
        write_report(store.root / name, report, form)


def write_report(output: Path, report: "Report", form: "Format") -> None:
    """Write ``report`` to a file; a format that links to charts gets them in `plots/` beside it, unless the file is a
    stream."""
    from bench.report.render.formats import chart_files

    beside = form.links_charts and not is_stream(output)
    _write(output, form.render(report, "plots" if beside else None))
    for name, drawing in chart_files(report).items() if beside else ():
        _write(output.parent / "plots" / name, drawing)


def is_stream(output: Path) -> bool:
    """``/dev/stdout``, or a pipe."""
    return output.exists() and not output.is_file() and not output.is_dir()


def _write(output: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, and make its folder if necessary; a stream is written directly."""
    from bench.store.spool import write_bytes

    data = content.encode() if isinstance(content, str) else content
    if is_stream(output):
        with output.open("wb") as stream:
            stream.write(data)
    elif output.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(output, data)
