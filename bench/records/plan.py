"""What is planned for one cell of a matrix."""

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from bench.records.base import Frozen
from bench.records.cell import Cell

Batch = int | Literal["probe"]
"""A batch per rank, or ``probe``: search for the largest, the best and the safe batch."""


class CellPlan(Frozen):
    """A cell and the batches at which to measure it."""

    cell: Cell
    batches: tuple[Batch, ...]
    """Batches per rank: ascending, unique, ``probe`` last."""
    axes: dict[str, JsonValue]
    """The values that identify the cell in reports: the backend, then every axis in the order of the file."""
    launches: Annotated[int, Field(ge=1)] = 1
    """How often each of its attempts is launched. The cell's id does not depend on it."""

    @property
    def label(self) -> str:
        """``fsdp num_cams=1 attention=sdpa grad_ckpt=true``."""
        values = {name: v if isinstance(v, str) else json.dumps(v) for name, v in self.axes.items()}
        return " ".join(value if name == "backend" else f"{name}={value}" for name, value in values.items())
