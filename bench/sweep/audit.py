"""One audit: runs real ranks that inspect a cell, in the sweep's folder and with its executor."""

from dataclasses import dataclass
from pathlib import Path

from bench.records.cell import Audit, AuditKind, Cell
from bench.records.outcome import Failed, Hang, Ok, Oom, Reported, Scripted, Skipped
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankAudited
from bench.sweep.outcomes import outcome_of
from bench.sweep.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A finished audit of one cell."""

    label: str
    folder: Path
    batch_per_rank: int
    steps: int
    ended: Oom | Hang | Failed | None
    """The outcome, if a rank could not finish its part."""


def audit(sweep: Sweep, plan: CellPlan, kind: AuditKind, batch_per_rank: int, steps: int) -> Audited:
    """Run one audit; the ranks leave what they recorded in its folder. The audit of parameters runs in one process."""
    sweep.progress.attempt(f"{kind} of {plan.label}", batch_per_rank)
    audit = Audit(cell=plan.cell, kind=kind, batch_per_rank=batch_per_rank, steps=steps)
    folder = sweep.store.begin(audit).resolve()
    cell = _unlimited(plan.cell) if kind != "params" else _unsharded(plan.cell)
    launched, _ = sweep.launch(audit.model_copy(update={"cell": cell}), folder)
    outcome = None
    if not all(isinstance(rank, RankAudited) for rank in launched.ranks) or len(launched.ranks) < cell.num_processes:
        outcome = outcome_of(launched, cell, sweep.machine.hardware)
    assert not isinstance(outcome, Ok | Reported | Scripted | Skipped)
    return Audited(label=plan.label, folder=folder, batch_per_rank=batch_per_rank, steps=steps, ended=outcome)


def _unlimited(cell: Cell) -> Cell:
    """What an audit records does not depend on memory, so it runs without a limit."""
    return cell.model_copy(update={"memory_limit_bytes": None})


def _unsharded(cell: Cell) -> Cell:
    """The cell's model and samples in one process."""
    return _unlimited(cell).model_copy(update={"backend": "single", "accelerate": None, "num_processes": 1})
