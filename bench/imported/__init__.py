"""Imported figures -> results: tables as they are published, and the JSON of profilers and trainers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InputError, InputErrors
from bench.imported.files import Table, given_on_the_command_line, mapped, read
from bench.imported.meanings import understood
from bench.imported.results import results_of
from bench.records.outcome import Reported, Result
from bench.units import counted


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of `read_all`."""

    results: tuple[Result, ...]
    not_read: tuple[str, ...]
    """Columns of bench's own tables that follow from others."""
    notes: tuple[str, ...]
    """Columns and keys that are only kept as they were written."""
    told: tuple[str, ...]
    """Sentences about settings among the columns, and about rows or figures that could not be used."""


def read_all(
    paths: Sequence[Path],
    settings: Sequence[str],
    at: str,
    mappings: Sequence[str] = (),
    number: int | None = None,
) -> Imported:
    """The results in ``paths``: tables in csv, tsv, Markdown and HTML, and JSON, by the ends of their names.

    A table has a line of column names and one row per measurement. Values common to all rows may be in ``settings``, or
    in lines ``# name: value`` above the column names of a csv file. Required: backend, workload, num_processes, and the
    batch of a rank or the global one. An empty value is unknown. Unknown columns are kept as notes.

    The csv and json of `bench report` can be read, too.

    Args:
        settings: ``num_processes=8``: values for all rows that do not set them.
        at: the time of the import, ISO 8601, UTC.
        mappings: ``step_time_s=timing.step``: fields, and the columns or keys of other names that hold them.
        number: which table of a file with several, from 1.

    Raises:
        InputErrors: all errors in the files, with their lines.
    """
    common, fields_of = given_on_the_command_line(settings), mapped(mappings)
    tables: list[Table] = []
    errors: list[InputError] = []
    for path in paths:
        try:
            tables.append(read(path, common, fields_of, number))
        except InputError as error:
            errors.append(error)
    if errors:
        raise InputErrors(errors)
    rows = [row for table in tables for row in table.rows]
    for theirs, field in fields_of.items():
        given = (row for row in rows if field in row.values and row.places.get(field) != "command line")
        if not any(given) and not any(theirs in row.notes for row in rows):
            raise InputError(f"no file has a value called {theirs!r}", where=f"--map {field}={theirs}")
    understood_rows, told = understood(rows)
    if not understood_rows:
        raise InputError(
            "no row has a figure",
            where=", ".join(map(str, paths)),
            fix="give a column such as step_time_ms, samples_per_s or tokens_per_s, or an outcome such as oom; --map"
            " FIELD=NAME says what a column holds",
        )
    results = results_of(understood_rows, at)
    if repeated := sum(result.attempt.launch > 1 for result in results):
        told.append(f"{counted(repeated, 'row')} repeat the settings and batch of others: further launches")
    untimed = sum(
        isinstance(result.outcome, Reported)
        and not result.outcome.step_time_s_per_rank
        and result.outcome.samples_per_s_global is None
        for result in results
    )
    if untimed:
        told.append(f"{counted(untimed, 'row')} without a step time or throughput: reports leave out their figures")
    named = {name for row in rows for name in row.named}
    return Imported(
        results=tuple(results),
        not_read=tuple(dict.fromkeys(key for table in tables for key in table.not_read)),
        notes=tuple(dict.fromkeys(name for row in understood_rows for name in row.notes if name not in named)),
        told=tuple(told),
    )
