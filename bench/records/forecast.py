"""What one cell will hold in memory, as its program predicts it, at any batch."""

import math
from typing import Annotated

from pydantic import Field

from bench.records.base import Count, Device, Frozen, Share
from bench.records.cell import Cell, Regime
from bench.records.verdict import Goal

PARTS = (
    "weights",
    "masters",
    "moments",
    "gradients",
    "gathered",
    "buckets",
    "optimizer",
    "transport",
    "inputs",
    "activations",
)
"""All parts of the memory of a rank, in the order in which people read them. ``gathered``: whole units of sharded
weights. ``optimizer``: what a step of it needs for a short time. ``transport``: copies that a collective makes of its
own."""


class Line(Frozen):
    """One moment of a step: its memory is a straight line over the batch."""

    when: str
    """``forward``, ``backward`` or ``optimizer``."""
    parts: dict[str, Count]
    """Bytes that do not depend on the batch, by part: see `PARTS`."""
    fixed_bytes: float
    """Of activations, at batch 0; a line through two batches may begin below zero."""
    sample_bytes: float
    """Of activations, for each sample."""

    @property
    def at_zero(self) -> float:
        return sum(self.parts.values()) + self.fixed_bytes

    def at(self, batch: float) -> float:
        """Bytes at this batch."""
        return self.at_zero + self.sample_bytes * batch


class Forecast(Frozen):
    """The prediction for one cell."""

    cell: Cell
    device: Device
    lines: Annotated[tuple[Line, ...], Field(min_length=1)]
    """Each decides the peak at some batches, the smallest first. Where a step has several micro-batches at some batch,
    they are of such a step."""
    alone: tuple[Line, ...] = ()
    """The same where one micro-batch makes the global batch; empty where no batch of the cell is as large, or all."""
    input_bytes: Count
    """Of one sample of the batches that are on the device at once."""
    allowance_bytes: Count
    """Outside torch's tensors: see `bench.backends.forecast.allowance_bytes`."""
    apart: Share
    """By which share the peak of a third batch differs from that of the lines through the first two."""
    assumed: Count
    """See `Program.assumed`."""
    regime: Regime
    """That the cell asks for; nothing was observed."""
    unit_parameters: dict[int, Count]
    """Parameters of the units by how often a step runs their forward."""
    regathered: dict[int, Count] | None = None
    """Parameters of the units by how often FSDP gathers them for backward: see `RankOk.regathered`."""
    flops: dict[str, tuple[float, float]]
    """Operations of a step by dtype: at batch 0, and for each sample."""
    kept_bytes: tuple[float, float]
    """What forward keeps for backward: at batch 0, and for each sample."""
    moved_bytes: tuple[float, float]
    """What operators of forward and backward read and write: at batch 0, and for each sample."""
    operators: Count
    """Their calls."""

    @property
    def beside_limit_bytes(self) -> int:
        """Of the allowance, what a memory limit does not count: on a GPU, it counts torch's own memory alone."""
        return 0 if self.device == "cpu" else self.allowance_bytes

    def line(self, batch: int) -> Line:
        """The moment of the peak."""
        lines = self.alone if self.alone and self.cell.micro_batches(batch) <= 1 else self.lines
        return max(lines, key=lambda line: line.at(batch))

    def parts(self, batch: int) -> dict[str, float]:
        """Bytes at the peak by part."""
        line = self.line(batch)
        activations = line.fixed_bytes + line.sample_bytes * batch
        return {**line.parts, "inputs": self.input_bytes * batch, "activations": activations}

    def allocated_bytes(self, batch: int) -> float:
        """The peak of all tensors of a rank."""
        return self.line(batch).at(batch) + self.input_bytes * batch

    def needed_bytes(self, batch: int) -> float:
        """The peak with what is outside the tensors."""
        return self.allocated_bytes(batch) + self.allowance_bytes

    def largest(self, capacity_bytes: float, *, off: float = 0.0) -> int:
        """The largest batch that fits, of those that divide a rank's share of a global batch; 0 if none does.

        Args:
            off: by which share the tensors may be more than predicted, or less if it is negative.
        """
        room = (capacity_bytes - self.allowance_bytes) / (1 + off)

        def most(lines: tuple[Line, ...]) -> int:
            batches = [(room - line.at_zero) / max(line.sample_bytes + self.input_bytes, 1e-9) for line in lines]
            return max(0, math.floor(min(batches)))

        found = most(self.lines)
        if (whole := self.cell.train.global_batch) is None:
            return found
        share = whole // self.cell.num_processes
        return share if self.alone and most(self.alone) >= share else Goal().of(self.cell).down(found)


class KeptPlan(Frozen):
    """The plan of a run's cells, kept beside its results."""

    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    planned_at: str
    """ISO 8601, UTC."""
    forecasts: tuple[Forecast, ...]
