"""Both timing windows side by side, and the loss."""

from bench.report.rows import Sampled, Summary
from bench.report.tables.phases import P95_NOTE
from bench.report.tables.raw_matrix import details_of
from bench.report.tables.table import Column, Table
from bench.units import UNKNOWN, ms, percent

COLUMNS: tuple[Column[Sampled], ...] = (
    Column("mean ms", lambda measured: ms(measured.slowest.step.mean_s), numeric=True),
    Column("median ms", lambda measured: ms(measured.slowest.step.median_s), numeric=True),
    Column("p95 ms", lambda measured: ms(measured.slowest.step.p95_s), numeric=True),
    Column("synchronized ms", lambda measured: ms(measured.total_s), numeric=True),
    Column("difference", lambda measured: percent(measured.instrumentation_share), numeric=True),
    Column("gated by", lambda measured: measured.gate.words if measured.gate else UNKNOWN),
    Column("first loss", lambda measured: f"{measured.losses[0]:#.4g}", numeric=True),
    Column("last loss", lambda measured: f"{measured.losses[-1]:#.4g}", numeric=True),
)


def steps(summary: Summary) -> Table:
    """One row per result that bench measured."""
    return details_of(
        summary,
        "Steps",
        COLUMNS,
        notes=(
            f"mean, median, p95: of the slowest rank in the throughput window; {P95_NOTE}. synchronized: mean total of"
            " the phase window. difference: synchronization overhead and noise; not part of throughput. gated by: the"
            " rank that the others wait for in the phase window.",
        ),
    )
