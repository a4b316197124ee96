"""One audit: real ranks look at a cell, in the sweep's folder and by its launches."""

from dataclasses import dataclass
from pathlib import Path

from bench.matrix import CellPlan
from bench.records.cell import Audit, AuditKind, Cell
from bench.records.outcome import Failed, Hang, Ok, Oom, Reported, Skipped
from bench.records.rank_outcome import RankAudited
from bench.sweep.sweep import Sweep, label, outcome_of


@dataclass(frozen=True, kw_only=True)
class Audited:
    """An audit of one cell that has ended."""

    label: str
    folder: Path
    batch_per_rank: int
    ended: Oom | Hang | Failed | None
    """What it came to, when its ranks could not look at all that was asked for."""


def audit(sweep: Sweep, plan: CellPlan, kind: AuditKind, batch_per_rank: int, steps: int) -> Audited:
    """Have ranks look at one cell; what they find lies in the folder. Parameters are looked at by one process."""
    sweep.progress.attempt(f"{kind} of {label(plan)}", batch_per_rank)
    asked = Audit(cell=plan.cell, kind=kind, batch_per_rank=batch_per_rank, steps=steps)
    folder = sweep.store.begin(asked).resolve()
    cell = _unlimited(plan.cell) if kind != "params" else _unsharded(plan.cell)
    ended, _ = sweep.launch(asked.model_copy(update={"cell": cell}), folder)
    outcome = None
    if not all(isinstance(rank, RankAudited) for rank in ended.ranks) or len(ended.ranks) < cell.num_processes:
        outcome = outcome_of(ended, cell)
    assert not isinstance(outcome, Ok | Reported | Skipped)
    return Audited(label=label(plan), folder=folder, batch_per_rank=batch_per_rank, ended=outcome)


def _unlimited(cell: Cell) -> Cell:
    """What an audit looks at does not depend on memory: it may have all there is."""
    return cell.model_copy(update={"memory_limit_bytes": None})


def _unsharded(cell: Cell) -> Cell:
    """The cell's model and samples in one process."""
    return _unlimited(cell).model_copy(update={"backend": "single", "accelerate": None, "num_processes": 1})
