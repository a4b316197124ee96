"""Where the wall time went, and which share of it measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from bench.records.account import END, LAUNCH, Account
from bench.records.outcome import Result
from bench.records.phases import Stage
from bench.report.naming import cell_name, result_batch
from bench.report.rows import Summary
from bench.report.tables.table import Column, Number, Table, of_part, table_of
from bench.units import UNKNOWN, percent, seconds

MEASURED = (Stage.MEASURE, Stage.LARGEST, Stage.PHASES)
"""The parts that are measured steps: the throughput window and the phase window."""
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
CRITICAL = "A part lasts until the last rank has left it, so the slowest rank decides."
REST = "not accounted for: in no other column, such as the time after a rank was killed."


@dataclass(frozen=True)
class Spent:
    """The wall time of the attempts of a cell, added up. Those without an account only count in `attempts`."""

    results: Sequence[Result]
    """Those that bench launched."""

    @cached_property
    def accounts(self) -> list[tuple[float, Account]]:
        """The wall time and the account of each attempt that has one."""
        return [(result.wall_s, result.account) for result in self.results if result.account is not None]

    @property
    def wall_s(self) -> float:
        """Of the attempts with an account; of all if none has one."""
        return math.fsum([wall_s for wall_s, _ in self.accounts] or [result.wall_s for result in self.results])

    def part_s(self, *parts: str) -> float | None:
        """Seconds in ``parts``; None if no attempt reached any of them."""
        found = [account.parts_s[part] for _, account in self.accounts for part in parts if part in account.parts_s]
        return math.fsum(found) if found else None

    @property
    def not_accounted_s(self) -> float:
        """Seconds in no part, such as those of the last stage of ranks whose end nobody saw."""
        return max(0.0, math.fsum(wall_s - account.accounted_s for wall_s, account in self.accounts))

    @property
    def measured_share(self) -> float:
        """Share of the wall time in measured steps."""
        return (self.part_s(*MEASURED) or 0.0) / self.wall_s if self.wall_s else 0.0


def account(summary: Summary) -> Table:
    """One row for each cell, with all its attempts. Empty where no attempt has an account."""
    cells = [(cell_name(summary, cell.rows[0]), Spent(cell.launched)) for cell in summary.cells if cell.launched]
    if not any(spent.accounts for _, spent in cells):
        cells = []

    def attempts(spent: Spent) -> str:
        """``5``, or ``3 of 5`` if the others have no account."""
        known, n = len(spent.accounts), len(spent.results)
        return str(n) if known == n else f"{known} of {n}"

    return table_of(
        "Wall time, s",
        cells,
        [
            Column("cell", itemgetter(0)),
            *of_part(itemgetter(1), [Number("attempts", attempts), *_columns(GROUPED, [spent for _, spent in cells])]),
        ],
        notes=(
            "Of all attempts of a cell, also those of a search. launch: until the ranks have imported what they need,"
            " and DeepSpeed has built its extension; the first attempt also waits for the rank servers. measured: both"
            " windows. attempts: 3 of 5 if only three recorded these times; the seconds are of these three. "
            + CRITICAL,
            REST,
        ),
    )


def account_of_each(results: Sequence[Result]) -> Table:
    """One row for each attempt that bench launched."""
    attempts = [(result_batch(result), Spent([result])) for result in results if result.isolation is not None]
    return table_of(
        "Wall time, s",
        attempts,
        [
            Number("batch per rank", itemgetter(0)),
            *of_part(itemgetter(1), _columns(EACH, [spent for _, spent in attempts])),
        ],
        notes=(
            "launch: until the last rank has begun. teardown: until the last process has ended. collected: until bench"
            " has read what they left. " + CRITICAL,
            REST,
        ),
    )


def _columns(parts: Parts, shown: Sequence[Spent]) -> list[Column[Spent]]:
    """The wall time, those of ``parts`` that an attempt reached, and what is left."""
    reached = [(header, of) for header, of in parts if any(spent.part_s(*of) is not None for spent in shown)]

    def known(header: str, words: Callable[[Spent], str]) -> Column[Spent]:
        return Number(header, lambda spent: words(spent) if spent.accounts else UNKNOWN)

    def part(header: str, of: tuple[str, ...]) -> Column[Spent]:
        """Empty if no attempt reached it."""
        return known(header, lambda spent: "" if (part_s := spent.part_s(*of)) is None else seconds(part_s))

    return [
        Number("wall", lambda spent: seconds(spent.wall_s)),
        *(part(header, of) for header, of in reached or STEPS),
        known("not accounted for", lambda spent: seconds(spent.not_accounted_s)),
        known("in measured steps", lambda spent: percent(spent.measured_share)),
    ]
