"""The rows that the two sides of a claim name, or why there are none to compare. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from pydantic import JsonValue

from bench.errors import near_miss
from bench.records.claim import Claim
from bench.report.contract import OBSERVED, RUN, differing, in_words
from bench.report.rows import CellRows, Row, Summary
from bench.report.tables.attempts import caption, setting


class Side(NamedTuple):
    """A row that a side of a claim names."""

    cell: CellRows
    row: Row


class NotTestedError(Exception):
    """Why a claim cannot be judged."""


def find_one(summary: Summary, claim: Claim) -> Side:
    """The one row of a claim that names one side.

    Raises:
        NotTestedError: there is none, or several.
    """
    return _only(list(_sides(summary, claim, claim.of)), claim.of)


def find_pair(summary: Summary, claim: Claim, against: Mapping[str, JsonValue]) -> tuple[Side, Side]:
    """The two sides that agree in all but the compared fields.

    Raises:
        NotTestedError: there are none, or several.
    """
    ours, theirs = list(_sides(summary, claim, claim.of)), list(_sides(summary, claim, against))
    pairs = sorted(
        ((_unlike(one, other, claim), one, other) for one, other in product(ours, theirs)),
        key=lambda pair: len(pair[0]),
    )
    alike = [(one, other) for fields, one, other in pairs if not fields]
    if not alike:
        fields, one, other = pairs[0]
        raise NotTestedError(f"the two sides differ in {in_words(fields, one.cell.contract, other.cell.contract)} too")
    if len(alike) > 1:
        _only([one for one, _ in alike], claim.of)
        _only([other for _, other in alike], against)
    return alike[0]


def _unlike(one: Side, other: Side, claim: Claim) -> tuple[str, ...]:
    compared = [*claim.of, *OBSERVED] if "backend" in claim.of else list(claim.of)
    fields = [
        name for name in differing(one.cell.contract, other.cell.contract, but=compared[0]) if name not in compared
    ]
    any_batch = "batch" in claim.of or claim.where.get("batch") == "best"
    same_batch = any_batch or one.row.batch_per_rank == other.row.batch_per_rank
    return (*fields, *([] if same_batch else ["batch"]))


def _sides(summary: Summary, claim: Claim, side: Mapping[str, JsonValue]) -> Iterator[Side]:
    """The rows that one side names and that were measured at the full step count.

    Raises:
        NotTestedError: there is none, and why.
    """
    wanted = {**claim.where, **side}
    cells = [cell for cell in summary.cells if _fits(cell, wanted)]
    if not cells:
        raise NotTestedError(_no_cell(summary, wanted))
    batch = wanted.get("batch")
    if batch == "best":
        found = [Side(cell, cell.best) for cell in cells if cell.best]
    else:
        found = [Side(cell, row) for cell in cells for row in cell.rows if batch in (None, row.batch_per_rank)]
    measured = [one for one in found if one.row.measured and not one.row.short]
    if not measured and any(one.row.measured for one in found):
        raise NotTestedError(f"{words(wanted)}: only a few steps were measured there")
    if not measured:
        outcomes = dict.fromkeys(one.row.outcome for one in found)
        raise NotTestedError(f"{words(wanted)}: {', '.join(outcomes) or 'no such batch was measured'}")
    yield from measured


def _fits(cell: CellRows, wanted: Mapping[str, JsonValue]) -> bool:
    held = cell.contract  # what is unknown is not null; a folder's name may read as a number
    named = {name: str(value) if name == RUN else value for name, value in wanted.items() if name != "batch"}
    return all(name in held and _same(held[name], value) for name, value in named.items())


def _same(one: JsonValue, other: JsonValue) -> bool:
    # In Python 1 == True.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _no_cell(summary: Summary, wanted: Mapping[str, JsonValue]) -> str:
    """Which of the conditions no result meets."""
    known = list(dict.fromkeys(name for cell in summary.cells for name in cell.contract))
    if RUN in wanted and RUN not in known:
        return f"no result has a field {RUN}: runs are told apart where several hold the same cell"
    for name in wanted:
        if name != "batch" and name not in known:
            return " ".join(
                filter(None, [f"no result has a field {name}:", near_miss(name, known) or "see the matrix"])
            )
    for name, value in wanted.items():
        if name != "batch" and not any(_fits(cell, {name: value}) for cell in summary.cells):
            return f"no result has {words({name: value})}"
    return f"no result has {words(wanted)}"


def _only(sides: Sequence[Side], named: Mapping[str, JsonValue]) -> Side:
    """The one row.

    Raises:
        NotTestedError: there are several; says in what they differ.
    """
    distinct = {id(side.row): side for side in sides}
    first, *others = distinct.values()
    if not others:
        return first
    fields = dict.fromkeys(
        name
        for other in others
        for name in (
            *differing(first.cell.contract, other.cell.contract, but=""),
            *(["batch"] if first.row.batch_per_rank != other.row.batch_per_rank else []),
        )
    )
    runs = ", ".join(sorted({str(side.cell.contract.get(RUN)) for side in distinct.values()}))
    which = ", ".join(f"{RUN} ({runs})" if name == RUN else name for name in fields)
    do = f"say in `where` which {which}" if which else "report on one run alone"
    raise NotTestedError(f"{len(distinct)} results are {words(named)}: {do}")


def named(side: Side, by: Mapping[str, JsonValue]) -> str:
    """``zero2, batch 8``: the fields ``by`` which a claim names it, and its batch."""
    settings = [
        str(side.cell.contract[name]) if name == "backend" else f"{name} {setting(name, side.cell.contract.get(name))}"
        for name in by
        if name != "batch"
    ]
    return ", ".join([*settings, f"batch {side.row.batch_per_rank}"])


def words(settings: Mapping[str, JsonValue]) -> str:
    return ", ".join(
        str(value) if name == "backend" else f"{caption(name)} {setting(name, value)}"
        for name, value in settings.items()
    )
