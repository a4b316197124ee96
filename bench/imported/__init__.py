"""Imported figures -> results: published tables as CSV, and the JSON of step profilers.

files.py           a file -> its rows, with the place of every value
names.py           the names of profilers and of bench itself -> fields
fields.py          the fields of a row, their units, and how each is parsed
results.py         a row -> a Result; what the row does not say stays unknown
script.py          what a script of a matrix has written -> its figures
contradictions.py  figures of a row that contradict each other
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InputError
from bench.imported.files import given_on_the_command_line, mapped, read, text_of
from bench.imported.results import results_of
from bench.records.outcome import Result
from bench.store.run_folder import Store


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of `read_all`."""

    results: tuple[Result, ...]
    not_read: tuple[str, ...]
    """Keys in profilers' JSON, and columns of bench's own tables, that an import has no place for."""


def read_all(paths: Sequence[Path], settings: Sequence[str], at: str, mappings: Sequence[str] = ()) -> Imported:
    """The results in ``paths``: CSV tables, and profilers' JSON where a name ends in ``.json``.

    A CSV file has a line of column names and one row per measurement. A name ends with its unit: ``step_time_ms``,
    ``peak_allocated_gb`` (1e9 bytes), ``peak_reserved_gib`` (2**30). Values common to all rows may be in lines
    ``# name: value`` above the column names. Required: backend, workload, num_processes, batch (per rank), source,
    and for a measured row a step time or a throughput. An empty value is unknown.

    The csv and json of `bench report` can be read, too. Their rows need no source.

    Args:
        settings: ``num_processes=8``: values for all rows that do not set them.
        at: the time of the import, ISO 8601, UTC.
        mappings: ``step_time_s=timing.step``: fields, and the columns or keys of other names that hold them.

    Raises:
        InputError: an error in a file, with its line.
    """
    common, fields_of = given_on_the_command_line(settings), mapped(mappings)
    tables = [read(path, common, fields_of) for path in paths]
    for theirs, field in fields_of.items():
        if not any(
            row.places.get(field) != "command line" and field in row.values for table in tables for row in table.rows
        ):
            raise InputError(f"no file has a value called {theirs!r}", where=f"--map {field}={theirs}")
    return Imported(
        results=tuple(results_of([row for table in tables for row in table.rows], at)),
        not_read=tuple(dict.fromkeys(key for table in tables for key in table.not_read)),
    )


def save(results: Sequence[Result], sources: Sequence[Path], store: Store) -> None:
    """Store ``results`` as a new run, with copies of their source files in ``imported/``.

    Raises:
        InputError: the folder already holds a run or cannot be written, or two files have the same name.
    """
    names = [path.name for path in sources]
    if twice := [str(path) for path in sources if names.count(path.name) > 1]:
        raise InputError("have the same name", where=" and ".join(twice), fix="rename one")
    if (store.root / "run.json").exists():
        raise InputError(
            "already holds a run", where=str(store.root), fix="choose another folder with --out, or remove this one"
        )
    texts = {path.name: text_of(path) for path in sources}
    cells = [result.attempt.cell for result in results]
    with store.open(results[0].machine, cells, None):
        for name, text in texts.items():
            store.keep(name, text)
        for result in results:
            store.finish(result)
