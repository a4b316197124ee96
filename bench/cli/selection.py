"""The options that select cells, with or without a matrix file; run, probe and audit share them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from bench.errors import InputError

if TYPE_CHECKING:
    from bench.matrix import Matrix
    from bench.records.machine import Hardware
    from bench.records.plan import CellPlan

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Set any field of the matrix: measure.steps=5, workload.preset=tiny."),
]
Axis = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUES", help="Set or add an axis: num_cams=1,2. May be repeated."),
]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="One backend or several: fsdp,zero2. With a matrix file: use only its cells of these backends.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES", help="Use only cells with one of these values: backend=fsdp,zero2. May be repeated."
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITIONS",
        help="Leave out cells that meet all conditions: 'backend=fsdp num_cams=4'. May be repeated.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The run folder to write to.  [default: reports/<name>]")
]
Rerun = Annotated[
    Literal["failed", "oom", "all"] | None,
    typer.Option(help="Measure finished attempts with this outcome again. failed includes hangs."),
]
KeepStale = Annotated[
    bool,
    typer.Option(
        "--keep-stale",
        help="Keep stored results that other sources made: the workload or the runner has changed since. Reports mark"
        " them.",
    ),
]
Isolate = Annotated[
    Literal["fork", "launch"],
    typer.Option(
        help="fork: rank servers import libraries once and fork a process for each attempt. launch: each attempt gets"
        " its own accelerate launch, which is slower."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print each cell's config, environment and command, and launch nothing."),
]


Force = Annotated[bool, typer.Option("--force", help="Launch even what cannot fit in the memory of the host.")]


class Selection(NamedTuple):
    """A matrix and the selected cells of it, on this machine."""

    matrix: "Matrix"
    plans: "list[CellPlan]"
    hardware: "Hardware"


def file_and_overrides(matrix: Path | None, overrides: list[str] | None) -> tuple[Path | None, list[str]]:
    """The matrix file, if there is one, and the overrides. Without a file, the first argument may be an override."""
    if matrix is not None and "=" in str(matrix) and not matrix.exists():
        return None, [str(matrix), *(overrides or [])]
    return matrix, overrides or []


def read(
    matrix: Path | None,
    overrides: Sequence[str] = (),
    *,
    axis: Sequence[str] | None = None,
    backend: str | None = None,
    short: Mapping[str, str | None] | None = None,
    select: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    probed: bool = False,
    batch: int | None = None,
    hardware: "Hardware | None" = None,
    launcher: str = "local",
) -> Selection:
    """Load the matrix and select cells.

    Args:
        backend: selects cells of a matrix file; without a file, it is the backend axis.
        short: axes that have an option of their own, such as --num-cams; None where it is not given.
        probed: see `bench.matrix.load`.
        batch: for cells whose matrix names none.
        hardware: that the cells are for; by default, this machine's.
        launcher: where the ranks will run. Only a job of Slurm has several nodes, and without ``hardware``, nodes may
            have GPUs that this machine lacks.

    Raises:
        InputError: anything wrong in the file or the options; it names the option that was given.
    """
    from bench import machine
    from bench.matrix import expand, load
    from bench.matrix.bundled import named
    from bench.matrix.yaml_file import place_of

    options = {**(short or {}), **({"backend": backend} if matrix is None else {})}
    axes = {f"{name}={values}": _option(name, values) for name, values in options.items() if values is not None}
    known, hardware = hardware, hardware or machine.detect()
    try:
        file = named(matrix) if matrix is not None else None
        loaded = load(file, overrides=overrides, axes=[*(axis or []), *axes], probed=probed, hardware=hardware)
        if launcher == "slurm" and known is None and (gpus := loaded.slurm.gpus_per_node):
            hardware = hardware.model_copy(update={"device": "cuda", "devices": gpus})
            loaded = load(file, overrides=overrides, axes=[*(axis or []), *axes], probed=probed, hardware=hardware)
        if launcher == "local" and loaded.slurm.nodes > 1:
            raise InputError(
                f"{loaded.slurm.nodes} nodes are asked for, and this command runs on one machine",
                where=place_of(loaded.places, ("slurm", "nodes")),
                field="slurm.nodes",
                fix="use `bench run` or `bench probe` with --launcher slurm, or set slurm.nodes=1",
            )
        if batch is not None:
            loaded = loaded.model_copy(update={"defaults": {"batch": batch, **loaded.defaults}})
        picked = backend if matrix is not None else None
        plans = expand(loaded, hardware, backend=picked, select=select or [], exclude=exclude or [])
    except InputError as error:
        text = (error.where or "").removeprefix("--axis ")
        if text in axes and text not in (axis or []):
            error.where, error.field = axes[text], None
        raise
    return Selection(loaded, plans, hardware)


def _option(name: str, values: str) -> str:
    """``--num-cams 1,2``, as the user writes it on the command line."""
    return f"--{name.replace('_', '-')} {values}"
