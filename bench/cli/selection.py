"""What a command is about: the cells of a matrix file, or of options instead of one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

if TYPE_CHECKING:
    from bench.matrix import CellPlan, Matrix
    from bench.records.machine import Hardware

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Any field of a matrix: measure.steps=5, workload.preset=tiny"),
]
Axis = Annotated[list[str] | None, typer.Option(help="Set or add an axis: num_cams=1,2. Repeatable.")]
Backend = Annotated[
    str | None,
    typer.Option(help="One backend or several: fsdp,zero2. With a matrix file: picks its cells of these backends."),
]
Select = Annotated[
    list[str] | None, typer.Option(help="Keep only cells with these values: backend=fsdp,zero2. Repeatable.")
]
Exclude = Annotated[
    list[str] | None, typer.Option(help="Drop cells that meet all of 'backend=fsdp num_cams=4'. Repeatable.")
]
Out = Annotated[Path | None, typer.Option(help="The run's folder instead of reports/<name>.")]
Rerun = Annotated[
    Literal["failed", "oom", "all"] | None, typer.Option(help="Measure finished attempts of this kind again.")
]
Isolate = Annotated[
    Literal["fork", "launch"],
    typer.Option(help="fork: rank servers that import once. launch: each attempt its own accelerate launch."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells with config, environment and command; launch nothing.")
]


class Asked(NamedTuple):
    """A matrix and the cells of it that are meant, on this machine."""

    matrix: "Matrix"
    plans: "list[CellPlan]"
    hardware: "Hardware"


def file_and_overrides(matrix: Path | None, overrides: list[str] | None) -> tuple[Path | None, list[str]]:
    """Where no matrix file is needed, the first argument may be an override already."""
    if matrix is not None and "=" in str(matrix) and not matrix.exists():
        return None, [str(matrix), *(overrides or [])]
    return matrix, overrides or []


def read(
    matrix: Path | None,
    overrides: Sequence[str] = (),
    *,
    axis: Sequence[str] | None = None,
    backend: str | None = None,
    select: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    probed: bool = False,
    batch: int | None = None,
) -> Asked:
    """Load the matrix and pick of its cells.

    Args:
        backend: picks cells of a matrix file; without a file, it says what there is.
        probed: see `bench.matrix.load`.
        batch: of cells for which the matrix names none.
    """
    from bench import machine
    from bench.matrix import expand, load

    hardware = machine.detect()
    axes = [*(axis or []), *([f"backend={backend}"] if backend is not None and matrix is None else [])]
    loaded = load(matrix, overrides=overrides, axes=axes, probed=probed, hardware=hardware)
    if batch is not None:
        loaded = loaded.model_copy(update={"defaults": {"batch": batch, **loaded.defaults}})
    picked = backend if matrix is not None else None
    plans = expand(loaded, hardware, backend=picked, select=select or [], exclude=exclude or [])
    return Asked(loaded, plans, hardware)
