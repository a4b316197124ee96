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
    typer.Option(
        rich_help_panel="What to measure",
        metavar="NAME=VALUES",
        help="Set or add an axis: num_cams=1,2. May be repeated.",
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="What to measure",
        metavar="NAMES",
        help="One backend or several: fsdp,zero2. With a matrix file: use only its cells of these backends.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel="What to measure",
        metavar="NAME=VALUES",
        help="Use only cells with one of these values: backend=fsdp,zero2. May be repeated.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel="What to measure",
        metavar="CONDITIONS",
        help="Leave out cells that meet all conditions: 'backend=fsdp num_cams=4'. May be repeated.",
    ),
]
Runs = Annotated[list[Path] | None, typer.Argument(metavar="RUN", help="Run folders.  [default: the newest run]")]
Out = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel="Output", metavar="FOLDER", help="The run folder to write to.  [default: reports/<name>]"
    ),
]
Rerun = Annotated[
    Literal["failed", "oom", "all"] | None,
    typer.Option(
        rich_help_panel="How to measure",
        help="Measure finished attempts with this outcome again. failed includes hangs.",
    ),
]
KeepStale = Annotated[
    bool,
    typer.Option(
        "--keep-stale",
        rich_help_panel="How to measure",
        help="Keep stored results from older code: the workload or the runner has changed since. Reports mark them.",
    ),
]
Isolate = Annotated[
    Literal["fork", "launch"],
    typer.Option(
        rich_help_panel="How to measure",
        help="fork: rank servers import libraries once and fork a process for each attempt. launch: each attempt gets"
        " its own accelerate launch, which is slower.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        rich_help_panel="Output",
        help="List the cells, of at most eight with config, environment and command, and launch nothing.",
    ),
]


Force = Annotated[
    bool,
    typer.Option(
        "--force", rich_help_panel="How to measure", help="Launch even what cannot fit in the memory of the host."
    ),
]


class Selection(NamedTuple):
    """A matrix and the selected cells of it, on this machine."""

    matrix: "Matrix"
    plans: "list[CellPlan]"
    hardware: "Hardware"
    every: "list[CellPlan]"
    """All cells of the matrix."""


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
    select: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
    probed: bool = False,
    batch: int | None = None,
    hardware: "Hardware | None" = None,
    launcher: str = "local",
) -> Selection:
    """Load the matrix and select cells.

    Args:
        backend: selects cells of a matrix file; without a file, it is the backend axis.
        settings: the options of `bench.cli.settings`; None where one is not given. ``overrides`` come after them.
        probed: see `bench.matrix.load`.
        batch: for cells whose matrix names none.
        hardware: that the cells are for; by default, this machine's.
        launcher: where the ranks will run. Only a job of Slurm has several nodes, and without ``hardware``, nodes may
            have GPUs that this machine lacks.

    Raises:
        InputError: anything wrong in the file or the options; it names the option that was given.
    """
    from bench import machine
    from bench.cli import settings as settings_
    from bench.matrix import expand, left_out, load
    from bench.matrix.bundled import named
    from bench.matrix.select import narrow
    from bench.matrix.yaml_file import refusal

    _refuse_twice(axis or [])
    set_by = settings_.overrides(settings or {})
    overrides = [*set_by, *overrides]
    backends = [f"backend={backend}"] if matrix is None and backend is not None else []
    known, hardware = hardware, hardware or machine.detect()
    try:
        file = named(matrix) if matrix is not None else None
        loaded = load(file, overrides=overrides, axes=[*(axis or []), *backends], probed=probed, hardware=hardware)
        if launcher == "slurm" and known is None and (gpus := loaded.slurm.gpus_per_node):
            hardware = hardware.model_copy(update={"device": "cuda", "devices": gpus})
            loaded = load(file, overrides=overrides, axes=[*(axis or []), *backends], probed=probed, hardware=hardware)
        of_jobs = [place for key, place in loaded.places.items() if key[:1] == ("slurm",) and place in overrides]
        if of_jobs and launcher not in ("slurm", "srun"):
            fix = "add --launcher slurm to `bench run` or `bench probe`, or leave it out"
            raise InputError("has no effect: it works only with Slurm", where=of_jobs[0], fix=fix)
        if launcher == "local" and loaded.launch.nodes > 1:
            raise refusal(
                f"{loaded.launch.nodes} nodes are asked for, and this command runs on one machine",
                loaded.places,
                ("launch", "nodes"),
                fix="use `bench run` or `bench probe` with --launcher slurm, or set launch.nodes=1",
            )
        if batch is not None:
            loaded = loaded.model_copy(update={"defaults": {"batch": batch, **loaded.defaults}})
        picked = backend if matrix is not None else None
        every = expand(loaded, hardware)
        loaded = loaded.model_copy(update={"notes": (*loaded.notes, *left_out(loaded, hardware))})
        plans = narrow(every, backend=picked, select=select or [], exclude=exclude or [])
        _refuse_unused_ranks(loaded, plans, overrides)
    except InputError as error:
        if backends and error.where == f"--axis {backends[0]}" and backends[0] not in (axis or []):
            error.where, error.field = f"--backend {backend}", None
        if error.where in set_by:
            error.where, error.field = set_by[error.where], None
        raise
    return Selection(loaded, plans, hardware, every)


def _refuse_twice(axes: Sequence[str]) -> None:
    """Raises InputError for an axis that is given twice: the first values would be lost."""
    given: dict[str, str] = {}
    for text in axes:
        first = given.setdefault(text.partition("=")[0].strip(), text)
        if first is not text:
            problem = f"{first} has no effect: the axis is set again" if first != text else "is given twice"
            raise InputError(problem, where=f"--axis {text}", fix="give all its values in one")


def _refuse_unused_ranks(matrix: "Matrix", plans: "Sequence[CellPlan]", overrides: Sequence[str]) -> None:
    """Raises InputError for a number of ranks that no selected cell has: `single` is one process."""
    where, asked = matrix.places.get(("launch", "num_processes")), matrix.launch.num_processes
    if where in overrides and asked != "auto" and all(plan.cell.num_processes != asked for plan in plans):
        used = ", ".join(dict.fromkeys(f"{plan.cell.backend} runs {plan.cell.num_processes}" for plan in plans))
        raise InputError(f"has no effect: {used}", where=where, fix="leave it out, or select another backend")
