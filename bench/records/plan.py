"""What is planned: of one cell of a matrix, and of a run."""

from collections.abc import Collection
from typing import Annotated, Self

from pydantic import Field, JsonValue

from bench.records.base import Frozen, written
from bench.records.cell import Cell
from bench.records.claim import Claim


class CellPlan(Frozen):
    """A cell, the batches at which to measure it, and whether to search."""

    cell: Cell
    batches: tuple[int, ...] = ()
    """Batches per rank: ascending, unique."""
    search: bool = False
    """Whether to search for the largest, the best and the safe batch: ``batch: probe``."""
    axes: dict[str, JsonValue]
    """The values that identify the cell in reports: the backend, then every axis in the order of the file."""
    launches: Annotated[int, Field(ge=1)] = 1
    """How often each of its attempts is launched. The cell's id does not depend on it."""

    @property
    def batch_axis(self) -> tuple[int | str, ...]:
        """The batches as a matrix writes them: ``(1, 2, "probe")``."""
        return (*self.batches, *(["probe"] if self.search else []))

    def only(self, batches: Collection[int | str]) -> Self:
        """The same with those of its batches that are among ``batches``, which are as in ``batch_axis``."""
        kept = tuple(batch for batch in self.batches if batch in batches)
        return self.model_copy(update={"batches": kept, "search": self.search and "probe" in batches})

    @property
    def label(self) -> str:
        """``fsdp num_cams=1 attention=sdpa grad_ckpt=true``."""
        values = {name: written(value) for name, value in self.axes.items()}
        return " ".join(value if name == "backend" else f"{name}={value}" for name, value in values.items())


COST_OPTIONS = ("attention", "grad_ckpt")
"""Fields that change what a step costs, and not its losses, of workloads that do not name theirs."""

RUN = "run"
"""The axis that a report of several runs adds."""
RESERVED = (RUN, "workload", "memory_limit_bytes")
"""Settings of every row of a report: no option or placeholder can have their names."""


class RunPlan(Frozen):
    """The matrix of a run, as the last command of the run read it. Reports and the command that resumes read this."""

    matrix: str
    """Its name."""
    cells: tuple[CellPlan, ...]
    """All its cells, also those that --select and --exclude left out."""
    claims: tuple[Claim, ...] = ()
    choices: tuple[str, ...] = ()
    """Axes of which the report picks the best value; empty for the default."""
    cost_options: tuple[str, ...] = COST_OPTIONS
    """Fields of its workload that change what a step costs, and not its losses."""
    workload_folder: str | None = None
    """Where the workload is, if it is not in the current folder."""
