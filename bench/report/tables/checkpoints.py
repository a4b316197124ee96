"""What a checkpoint costs, and whether training goes on from it."""

from collections.abc import Callable

from bench.records.rank_outcome import Checkpoint
from bench.report.rows import Sampled, Summary
from bench.report.tables.raw_matrix import details_of
from bench.report.tables.table import Column, Table
from bench.units import ms, percent, size


def checkpoints(summary: Summary) -> Table:
    """One row for each result with a checkpoint. Empty where none was measured."""
    columns = [
        Column[Sampled]("save ms", _largest(lambda one: one.save_s, ms), numeric=True),
        Column[Sampled]("load ms", _largest(lambda one: one.load_s, ms), numeric=True),
        Column[Sampled]("on disk", _largest(lambda one: one.stored_bytes, size), numeric=True),
        Column[Sampled]("next losses", _largest(lambda one: one.apart, _apart)),
    ]
    return details_of(
        summary,
        "Checkpoints",
        columns,
        notes=(
            "save and load: until all ranks are done. The system may write files to the disk later, and read them from"
            " memory. next losses: of the steps after saving, and of the same steps after loading.",
        ),
        which=lambda measured: bool(_checkpoints(measured)),
    )


def _checkpoints(measured: Sampled) -> list[Checkpoint]:
    return [rank.raw.checkpoint for rank in measured.ranks if rank.raw.checkpoint]


def _largest(value: Callable[[Checkpoint], float], words: Callable[[float], str]) -> Callable[[Sampled], str]:
    return lambda measured: words(max(map(value, _checkpoints(measured))))


def _apart(share: float) -> str:
    return "the same" if not share else f"differ by {percent(share)}"
