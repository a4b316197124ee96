"""What the ranks of a step send each other: by formula, and as torch's flight recorder saw it. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.records.rank_outcome import Traffic
from bench.report.formulas import StepFormulas, sent_bytes
from bench.report.rows import CellRows, Row
from bench.report.theory import observed_regime

NEGLIGIBLE = 0.01


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What each rank sends in one step by one operation."""

    row: Row
    """Whose step it is."""
    operation: str
    calls: int | None
    """Recorded; None without a record."""
    recorded_bytes: float | None
    formula_bytes: float | None
    """None where no formula has this operation, or what it needs is unknown."""
    upper_bound: bool
    """Whether the formula is one."""

    @property
    def ratio(self) -> float | None:
        """Recorded over formula."""
        if not self.formula_bytes or self.recorded_bytes is None:
            return None
        return self.recorded_bytes / self.formula_bytes


def communication(cell: CellRows) -> list[Sent]:
    """By operation, of the best batch that was recorded. A recorded operation without formula counts from 1 % of all
    payload."""
    regime = observed_regime(cell)
    if regime is None or regime.world_size == 1:
        return []
    fastest = sorted(cell.full, key=lambda row: row.rate, reverse=True)
    ranks = [(row, row.sampled.slowest.raw) for row in (*fastest, *cell.rows) if row.sampled]
    row, shown = next(((row, rank) for row, rank in ranks if rank.traffic is not None), ranks[0])
    batch, recorded = row.batch_per_rank, shown.traffic
    units, again = next(
        ((rank.unit_parameters, rank.regathered) for _, rank in ranks if rank.unit_parameters is not None),
        (None, None),
    )
    step = StepFormulas(cell.cell, batch, regime, units, again)
    formula = step.sent(gloo=any(one.library == "gloo" for one in recorded or ()))
    if formula and cell.cell.train.optimizer == "muon":
        formula.pop("all_gather", None)  # Muon gathers the matrices too, and how many scalars they hold is not stored
    between = [one for one in recorded or () if one.group_size > 1]
    total = sum(one.payload_bytes for one in between)
    payloads = Counter[str]()
    for one in between:
        payloads[one.operation] += one.payload_bytes
    operations = {*(formula or {}), *(name for name, payload in payloads.items() if payload >= NEGLIGIBLE * total)}
    return [
        Sent(
            row=row,
            operation=operation,
            calls=_calls(recorded, operation),
            recorded_bytes=_recorded(recorded, operation),
            formula_bytes=(formula or {}).get(operation),
            upper_bound=operation == "all_gather" and step.gathers_at_most(),
        )
        for operation in sorted(operations)
    ]


def _calls(recorded: Sequence[Traffic] | None, operation: str) -> int | None:
    return None if recorded is None else sum(one.calls for one in recorded if one.operation == operation)


def _recorded(recorded: Sequence[Traffic] | None, operation: str) -> float | None:
    """By the size of each group; None for an operation that is not in `RING`."""
    if recorded is None:
        return None
    parts = [sent_bytes(operation, one.payload_bytes, one.group_size) for one in recorded if one.operation == operation]
    return None if None in parts else sum(part for part in parts if part is not None)
