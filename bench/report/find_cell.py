"""Finds the cell of a run that a user names. Pure."""

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.records.base import settings_in, written
from bench.records.json_diff import flat
from bench.records.outcome import Result
from bench.report.naming import setting
from bench.report.summary import row_of

MAX_LISTED = 12
BATCH = re.compile(r"(?:^|\s)(?:micro-)?batch=(\S*)")
ACCUMULATE = re.compile(r"(?:^|\s)accumulate=(\S*)")


def find_cell(results: Sequence[Result], words: str) -> list[Result]:
    """The results of the one cell that ``words`` name, in their order.

    Args:
        words: a cell's id or folder name, the beginning of either, settings, or both: ``backend=fsdp num_cams=4``, or
            ``fsdp num_cams=4``. With ``batch=8``, only the results of this batch. Where a global batch is given,
            ``accumulate=4`` names the batch that needs so many.

    Raises:
        InputError: no cell matches, more than one does, or the cell has no result of the batch.
    """
    several = ACCUMULATE.findall(words)
    if several and any(result.attempt.cell.train.global_batch for result in results):
        with_it = [result for result in results if str(_micro_batches(result)) == several[-1]]
        if not with_it:
            allowed = sorted({_micro_batches(result) for result in results})
            raise InputError(f"no step has accumulate={several[-1]}", allowed=list(map(str, allowed)))
        return find_cell(with_it, ACCUMULATE.sub("", words))
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.attempt.cell.id, []).append(result)
    if not by_cell:
        raise InputError("this run holds no results", fix="`bench run` again resumes it")
    cells = {cell_id: group[0] for cell_id, group in by_cell.items()}
    batches = BATCH.findall(words)
    name, *settings = settings_in(BATCH.sub(" ", words))
    if "=" in name:
        name, settings = "", [name, *settings]
    matching = _by_name(cells, name) if name or not (settings or batches) else list(cells)
    matching = _by_settings(cells, matching, settings)
    if len(matching) > 1:
        raise InputError(
            f"{words!r} matches {len(matching)} cells",
            allowed=_listed([cells[cell_id] for cell_id in matching]),
            fix="name one of these, or add settings that only one of them has",
        )
    found = by_cell[matching[0]]
    return _of_batch(found, batches[-1]) if batches else found


def _micro_batches(result: Result) -> int:
    return result.attempt.cell.micro_batches(result.attempt.batch_per_rank)


def _of_batch(results: Sequence[Result], batch: str) -> list[Result]:
    found = [result for result in results if str(result.attempt.batch_per_rank) == batch]
    if not found:
        measured = sorted({result.attempt.batch_per_rank for result in results})
        raise InputError(f"the cell has no result of batch={batch}", allowed=list(map(str, measured)))
    return found


def _by_name(cells: Mapping[str, Result], name: str) -> list[str]:
    slugs = {cell_id: result.attempt.cell.slug for cell_id, result in cells.items()}
    exact = [cell_id for cell_id, slug in slugs.items() if name in (cell_id, slug)]
    matching = exact or [
        cell_id for cell_id, slug in slugs.items() if name and (cell_id.startswith(name) or _begins(slug, name))
    ]
    if not matching:
        raise InputError(
            f"no cell is called {name!r}",
            allowed=_listed(list(cells.values())),
            fix=near_miss(name, [*slugs.values(), *slugs]) or "or name settings: backend=fsdp num_cams=4",
        )
    return matching


def _begins(slug: str, name: str) -> bool:
    """Whether ``slug`` begins with ``name``. A backend counts only as a whole: ``fsdp`` does not match ``fsdp2``."""
    backend = slug.rpartition("-")[0]
    return slug.startswith(name) and (len(name) > len(backend) or name == backend)


def _by_settings(cells: Mapping[str, Result], named: Sequence[str], words: Sequence[str]) -> list[str]:
    """The cells of ``named`` that have these settings."""
    settings_of = {cell_id: _settings(result) for cell_id, result in cells.items()}
    matching, left = list(named), list(words)
    while left:
        name, _, value = left[0].partition("=")
        names = dict.fromkeys(name for settings in settings_of.values() for name in settings)
        if name not in names:
            short = [path for path in names if "." not in path]
            raise InputError(f"no cell has a setting called {name!r}", allowed=short, fix=near_miss(name, names))
        known = {cell_id: settings_of[cell_id][name] for cell_id in matching if name in settings_of[cell_id]}
        for taken in range(len(left), 0, -1):  # a value may hold what looks like the next setting
            text = " ".join(left[:taken]).partition("=")[2]
            if with_value := [cell_id for cell_id, own in known.items() if text in _ways_to_write(name, own)]:
                matching, left = with_value, left[taken:]
                break
        else:
            values = dict.fromkeys(written(settings_of[cell_id].get(name)) for cell_id in matching)
            rest = "" if len(matching) == len(cells) else " among those that match what is before it"
            raise InputError(f"no cell has {left[0]}{rest}", allowed=values, fix=near_miss(value, values))
    return matching


def _ways_to_write(name: str, value: JsonValue) -> tuple[str, ...]:
    """As in a command, with and without quotes, as in Python, and as in the tables."""
    return written(value), json.dumps(value, ensure_ascii=False), str(value), setting(name, value)


def _settings(result: Result) -> dict[str, JsonValue]:
    """Everything that a user may name a cell by: settings as in the tables, and every field by its path."""
    cell = result.attempt.cell
    return {**row_of(result).settings, **cell.options, **flat(cell.model_dump(mode="json"))}


def _listed(results: Sequence[Result]) -> str:
    """Cells by folder and axes, for an error. Cells that have the same axes are followed by the other settings in which
    cells differ: ``memory_limit_bytes=335544320``."""
    settings = [flat(result.attempt.cell.model_dump(mode="json")) for result in results]
    axes = [_written(result.axes) for result in results]
    if len(set(axes)) < len(axes):
        paths = dict.fromkeys(path for of_cell in settings for path in of_cell)
        differing = [path for path in paths if len({written(of_cell.get(path)) for of_cell in settings}) > 1]
        others = [
            _written({path: of_cell.get(path) for path in differing if path.rpartition(".")[2] not in result.axes})
            for result, of_cell in zip(results, settings, strict=True)
        ]
        axes = [" ".join(filter(None, pair)) for pair in zip(axes, others, strict=True)]
    cells = [f"{result.attempt.cell.slug} ({words})" for result, words in zip(results, axes, strict=True)]
    more = [f"and {len(cells) - MAX_LISTED} more"] if len(cells) > MAX_LISTED else []
    return "; ".join([*cells[:MAX_LISTED], *more])


def _written(settings: Mapping[str, JsonValue]) -> str:
    return " ".join(f"{name}={written(value)}" for name, value in settings.items())
