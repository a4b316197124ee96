"""Where the wall time went, and which share of it measured."""

from collections.abc import Callable, Sequence

from bench.records.account import END, LAUNCH
from bench.records.outcome import Result
from bench.records.phases import Stage
from bench.report.account import MEASURED, Spent, spent
from bench.report.naming import cell_name
from bench.report.rows import Summary
from bench.report.tables.table import Column, Table, of_part, table_of
from bench.report.tables.verbatim import batch
from bench.units import UNKNOWN, percent, seconds

Parts = Sequence[tuple[str, tuple[str, ...]]]
"""A header, and the parts of an account below it."""
STEPS: Parts = (
    ("join", (Stage.JOIN,)),
    ("build", (Stage.SETUP,)),
    ("warm-up", (Stage.WARMUP,)),
)
GROUPED: Parts = (
    ("launch", (LAUNCH, Stage.START, Stage.COMPILE)),
    *STEPS,
    ("measured", MEASURED),
    ("checkpoint", (Stage.CHECKPOINT,)),
    ("teardown", (Stage.DONE, END)),
)
EACH: Parts = (
    ("launch", (LAUNCH,)),
    ("imports", (Stage.START,)),
    ("extension", (Stage.COMPILE,)),
    *STEPS,
    ("measured", (Stage.MEASURE, Stage.LARGEST)),
    ("phases", (Stage.PHASES,)),
    ("checkpoint", (Stage.CHECKPOINT,)),
    ("teardown", (Stage.DONE,)),
    ("collected", (END,)),
)
_GATED = "A part lasts until the last rank has left it, so the slowest rank decides."
_REST = "not accounted for: in no other column, such as the time after a rank was killed."


def account(summary: Summary) -> Table:
    """One row for each cell, with all its attempts. Empty where no attempt has an account."""
    cells = [cell for cell in summary.cells if cell.spent.results]
    if not any(cell.spent.known for cell in cells):
        cells = []
    pairs = [(cell_name(summary, cell.rows[0]), cell.spent) for cell in cells]
    attempts = Column[Spent]("attempts", _attempts, numeric=True)
    return _table(
        "Wall time, s",
        "cell",
        pairs,
        [attempts, *_columns(GROUPED, [one for _, one in pairs])],
        "Of all attempts of a cell, also those of a search. launch: until the ranks have imported what they need, and"
        " DeepSpeed has built its extension; the first attempt also waits for the rank servers. measured: both windows."
        " attempts: 3 of 5 if only three recorded these times; the seconds are of these three.",
    )


def account_of_each(results: Sequence[Result]) -> Table:
    """One row for each attempt that bench launched."""
    pairs = [(batch(result), spent([result])) for result in results if result.isolation is not None]
    return _table(
        "Wall time, s",
        "batch per rank",
        pairs,
        _columns(EACH, [one for _, one in pairs]),
        "launch: until the last rank has begun. teardown: until the last process has ended. collected: until bench has"
        " read what they left.",
    )


def _table(
    title: str, name: str, pairs: Sequence[tuple[str, Spent]], columns: Sequence[Column[Spent]], note: str
) -> Table:
    named = Column[tuple[str, Spent]](name, lambda pair: pair[0], numeric=name != "cell")
    return table_of(title, pairs, [named, *of_part(lambda pair: pair[1], columns)], notes=(f"{note} {_GATED}", _REST))


def _columns(parts: Parts, shown: Sequence[Spent]) -> list[Column[Spent]]:
    """The wall time, those of ``parts`` that an attempt reached, and what is left."""
    reached = [(header, of) for header, of in parts if any(one.part_s(*of) is not None for one in shown)]
    return [
        Column("wall", lambda one: seconds(one.wall_s), numeric=True),
        *(Column[Spent](header, _known(_part(of)), numeric=True) for header, of in reached or STEPS),
        Column("not accounted for", _known(lambda one: seconds(one.not_accounted_s)), numeric=True),
        Column("in measured steps", _known(lambda one: percent(one.measured_share)), numeric=True),
    ]


def _part(of: tuple[str, ...]) -> Callable[[Spent], str]:
    """Empty if no attempt reached it."""
    return lambda one: "" if (part_s := one.part_s(*of)) is None else seconds(part_s)


def _known(words: Callable[[Spent], str]) -> Callable[[Spent], str]:
    return lambda one: words(one) if one.known else UNKNOWN


def _attempts(one: Spent) -> str:
    """``5``, or ``3 of 5`` if the others have no account."""
    known, n = len(one.accounts), len(one.results)
    return str(n) if known == n else f"{known} of {n}"
