"""What stored results say about the training of one cell, for the audit of its data loader. Pure."""

from collections.abc import Sequence

from bench.audit.dataloader import Training
from bench.records.outcome import Result
from bench.report.summary import summarize


def training(results: Sequence[Result], batch_per_rank: int | None = None) -> Training | None:
    """The full measurement of one cell; None where there is none.

    Args:
        results: of one cell.
        batch_per_rank: only this batch counts; None selects the best one.
    """
    cells = summarize(results).cells  # more than one if the cell ran on unlike machines
    rows = [row for cell in cells for row in cell.rows if row.batch_per_rank == batch_per_rank and not row.short]
    if batch_per_rank is None:
        rows = [cell.best for cell in cells if cell.best]
    row = next((row for row in rows if row.measured), None)
    if row is None or row.measured is None:
        return None
    phases = row.measured.phases
    return Training(
        batch_per_rank=row.batch_per_rank,
        samples_per_s_global=row.measured.samples_per_s_global,
        dataload_wait_share=None if phases is None else phases.share("dataload_wait"),
    )


def batch_to_audit(results: Sequence[Result], planned: Sequence[int]) -> int:
    """The batch at which the cell trained fastest, else the smallest that is planned, else 1."""
    fastest = training(results)
    return fastest.batch_per_rank if fastest else min(planned, default=1)
