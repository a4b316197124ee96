"""Figures from elsewhere -> results: published tables as CSV, and the JSON of step profilers.

files.py    a file -> what each of its rows says, with the place of every value
fields.py   the fields that a row may have, their units, and what is read from each
results.py  a row -> a Result: what it does not say stays unknown, nothing is made up
contradictions.py  figures of a row that cannot all be right
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InputError
from bench.imported.files import given_on_the_command_line, read, text_of
from bench.imported.results import results_of
from bench.records.outcome import Result
from bench.store.run_folder import Store


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What `read_all` made of some files."""

    results: tuple[Result, ...]
    not_read: tuple[str, ...]
    """Keys of profilers' JSON that mean nothing here."""


def read_all(paths: Sequence[Path], settings: Sequence[str], at: str) -> Imported:
    """The results in ``paths``: CSV tables, and profilers' JSON where a name ends in ``.json``.

    A CSV file has a line of column names and a row for each measurement. A name says its unit: ``step_time_ms``,
    ``peak_allocated_gb`` (1e9 bytes), ``peak_reserved_gib`` (2**30). What is the same for all rows may stand above
    the names, in lines ``# name: value``. Required are backend, workload, num_processes, batch (of one rank) and
    source, and for what was measured a step time or a throughput. What is left empty is unknown.

    Args:
        settings: ``num_processes=8``: what holds for all rows that do not say it themselves.
        at: the time of the import, ISO 8601, UTC.

    Raises:
        InputError: anything wrong in a file, with its line.
    """
    common = given_on_the_command_line(settings)
    tables = [read(path, common) for path in paths]
    return Imported(
        results=tuple(results_of([row for table in tables for row in table.rows], at)),
        not_read=tuple(dict.fromkeys(key for table in tables for key in table.not_read)),
    )


def save(results: Sequence[Result], sources: Sequence[Path], store: Store) -> None:
    """A new run of ``results``, with the files that they come from below ``imported/``.

    Raises:
        InputError: the folder holds something already, or cannot be written; two files of the same name.
    """
    names = [path.name for path in sources]
    if twice := [str(path) for path in sources if names.count(path.name) > 1]:
        raise InputError("have the same name", where=" and ".join(twice), fix="rename one")
    if (store.root / "run.json").exists():
        raise InputError(
            "holds a run already", where=str(store.root), fix="choose another folder with --out, or remove this one"
        )
    texts = {path.name: text_of(path) for path in sources}
    cells = [result.attempt.cell for result in results]
    with store.open(results[0].machine, cells, None):
        for name, text in texts.items():
            store.keep(name, text)
        for result in results:
            store.finish(result)
