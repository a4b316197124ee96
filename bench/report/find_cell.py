"""Which cell of a run a user means. Pure."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.records.outcome import Result
from bench.report.differences import flat
from bench.report.summary import row_of
from bench.report.tables.attempts import setting

MAX_LISTED = 12


def find_cell(results: Sequence[Result], words: str) -> list[Result]:
    """The results of the one cell that ``words`` name, in their order.

    Args:
        words: a cell's id or folder name, the beginning of either, or settings: ``backend=fsdp num_cams=4``.

    Raises:
        InputError: no cell is meant, or more than one.
    """
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.attempt.cell.id, []).append(result)
    if not by_cell:
        raise InputError("this run holds no results")
    cells = {cell_id: group[0] for cell_id, group in by_cell.items()}
    found = _by_settings(cells, words.split()) if "=" in words else _by_name(cells, words.strip())
    if len(found) > 1:
        raise InputError(
            f"{words!r} means {len(found)} cells",
            allowed=_listed([cells[cell_id] for cell_id in found]),
            fix="name one of these, or settings that tell them apart",
        )
    return by_cell[found[0]]


def _by_name(cells: Mapping[str, Result], name: str) -> list[str]:
    slugs = {cell_id: result.attempt.cell.slug for cell_id, result in cells.items()}
    exact = [cell_id for cell_id, slug in slugs.items() if name in (cell_id, slug)]
    found = exact or [
        cell_id for cell_id, slug in slugs.items() if name and (cell_id.startswith(name) or _begins(slug, name))
    ]
    if not found:
        raise InputError(
            f"no cell is called {name!r}",
            allowed=_listed(list(cells.values())),
            fix=near_miss(name, [*slugs.values(), *slugs]) or "or name settings: backend=fsdp num_cams=4",
        )
    return found


def _begins(slug: str, name: str) -> bool:
    """``fsdp`` begins no cell of ``fsdp2``; an id may be cut anywhere."""
    backend = slug.rpartition("-")[0]
    return slug.startswith(name) and (len(name) > len(backend) or name == backend)


def _by_settings(cells: Mapping[str, Result], words: Sequence[str]) -> list[str]:
    known = {cell_id: _settings(result) for cell_id, result in cells.items()}
    found = list(cells)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{word!r} is not a setting", allowed="NAME=VALUE, such as backend=fsdp num_cams=4")
        names = dict.fromkeys(name for settings in known.values() for name in settings)
        if name not in names:
            short = [known_name for known_name in names if "." not in known_name]
            raise InputError(f"no cell has a setting called {name!r}", allowed=short, fix=near_miss(name, names))
        here = [
            cell_id for cell_id in found if name in known[cell_id] and value in _spellings(name, known[cell_id][name])
        ]
        if not here:
            values = dict.fromkeys(json.dumps(known[cell_id].get(name)).strip('"') for cell_id in found)
            rest = "" if len(found) == len(cells) else " among those that meet the words before it"
            raise InputError(f"no cell has {word}{rest}", allowed=values, fix=near_miss(value, values))
        found = here
    return found


def _settings(result: Result) -> dict[str, JsonValue]:
    """Everything that a cell may be told by: as in the tables, and each field by its path."""
    cell = result.attempt.cell
    return {**row_of(result).settings, **cell.options, **flat(cell.model_dump(mode="json"))}


def _spellings(name: str, value: JsonValue) -> set[str]:
    """How a value may be written: as in a matrix, as in JSON, as in the tables."""
    return {str(value), json.dumps(value), setting(name, value)}


def _listed(results: Sequence[Result]) -> str:
    """Cells by folder and axes, for an error."""
    cells = [f"{result.attempt.cell.slug} ({_axes(result)})" for result in results[:MAX_LISTED]]
    more = [f"and {len(results) - MAX_LISTED} more"] if len(results) > MAX_LISTED else []
    return "; ".join([*cells, *more])


def _axes(result: Result) -> str:
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in result.axes.items()
    )
