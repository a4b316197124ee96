"""`--launcher slurm`: the options, the script, and the jobs that measure; and the part of a run inside of a job."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.errors import InputError

if TYPE_CHECKING:
    from bench.cli.selection import Selection
    from bench.launch.slurm.allocation import Allocation
    from bench.matrix import Matrix
    from bench.records.machine import Hardware
    from bench.records.plan import CellPlan
    from bench.sweep.share import Share
    from bench.sweep.sweep import Sweep

Launcher = Literal["local", "slurm", "srun"]
Where = Annotated[
    Launcher,
    typer.Option(
        rich_help_panel="Where",
        help="local: this machine. slurm: submit the command as a job and follow it; with --dry-run, print the script."
        " srun: inside of a job, use its nodes.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        rich_help_panel="Where",
        help="With --launcher slurm: the number of jobs that share the cells and run at the same time.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run measures."""

    context: typer.Context
    """Of the command."""
    launcher: Launcher
    jobs: int
    alone: str | None = None
    """An option that needs all cells in one job."""

    def check(self, plans: "Sequence[CellPlan]", isolation: str) -> None:
        """Raises InputError for options that do not go together."""
        if self.jobs > 1 and self.launcher != "slurm":
            raise InputError("works only with Slurm", where="--jobs", fix="add --launcher slurm")
        if self.jobs > 1 and self.alone:
            raise InputError(
                "cannot be combined with --jobs: one job must measure all the cells that it compares",
                where=self.alone,
                fix="leave out --jobs",
            )
        if isolation == "launch" and any(plan.cell.num_nodes > 1 for plan in plans):
            raise InputError("several nodes need rank servers", where="--isolation launch", fix="use --isolation fork")

    def is_followed(self) -> bool:
        """Whether this is the bench of a job's script. It ends with 0 even if attempts failed: its code tells how the
        job ended, and who follows the jobs finds failed attempts in the run folder."""
        from bench.store import jobs

        return self.launcher == "srun" and jobs.this_job() is not None

    @contextmanager
    def share(self, matrix: "Matrix", hardware: "Hardware", folder: Path) -> "Iterator[Share | None]":
        """Which part of the run this process measures; None: all of it.

        Raises:
            InputError: it is to measure inside of a job, and is on no node of one, or the job has too few nodes or
                GPUs, or its tasks would get none, or another bench measures in it.
        """
        if self.launcher == "local":
            yield None
            return
        from bench.records.slurm import BEGAN
        from bench.sweep.share import Share

        job = _job_of_this_process(folder)
        if job.nodes < matrix.launch.nodes:
            raise InputError(
                f"the job has {job.nodes} of the {matrix.launch.nodes} nodes that cells need",
                where="--launcher srun",
                fix=f"submit it with --nodes={matrix.launch.nodes}",
            )
        if hardware.devices < (asked := matrix.slurm.gpus_per_node or 0):
            raise InputError(
                f"the first node of the job shows {hardware.devices} of the {asked} GPUs that were asked for",
                where="--launcher srun",
                fix="see what nvidia-smi says in a job; to measure on CPUs, leave out slurm.gpus_per_node",
            )
        if matrix.launch.nodes > 1 and hardware.device == "cuda" and matrix.slurm.gpus_per_node is None:
            raise InputError(
                "the other nodes would give no GPU to ranks: srun gives what the job has asked for",
                where="--launcher srun",
                field="slurm.gpus_per_node",
                fix=f"set slurm.gpus_per_node, or add --gpus-per-node={hardware.devices}",
            )
        began = os.environ.get(BEGAN)
        with job.entered():
            yield Share(
                takes=job.claims.take,
                holds=job.claims.holds,
                left_s=job.left_s,
                is_ending=job.is_ending,
                began=None if began is None else datetime.fromisoformat(began),
            )


def _job_of_this_process(root: Path) -> "Allocation":
    """Raises InputError where this process would not measure on a node of a job: salloc's shell stays where it was."""
    from bench.launch.slurm.allocation import Allocation

    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        raise InputError(
            "this is no job of Slurm", where="--launcher srun", fix="use --launcher slurm, which submits one"
        )
    if "SLURMD_NODENAME" not in os.environ:  # slurmd sets it in all that it starts
        raise InputError(
            f"this shell is not on a node of the job {number}",
            where="--launcher srun",
            fix="run `srun --nodes=1 --ntasks=1 --pty bash`, and there the same command",
        )
    return Allocation(root, number)


def inner_arguments(context: typer.Context, folder: Path, *, once: bool = False) -> list[str]:
    """The arguments of this command as a job runs it: the same, but for where it measures; ``once``: without further
    launches, where several jobs share the cells."""
    words = [str(context.info_name)]
    tail: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in ("launcher", "jobs", "dry_run", "out") or value is None or value == parameter.default:
            continue
        values = list(value) if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            tail += map(str, values)
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            words += [f"{parameter.opts[0]}={one}" for one in values]
    return [*words, "--launcher=srun", f"--out={folder}", *tail, *(["measure.launches=1"] if once else [])]


def run(
    where: Place,
    matrix: "Matrix",
    select: "partial[Selection]",
    folder: Path,
    *,
    dry_run: bool,
    again: bool,
    goes_on: bool,
    best: bool,
    keep_stale: bool,
) -> int:
    """Submit jobs and follow them until all is measured, or print their script. Returns the exit code.

    Args:
        select: reads the matrix, and selects its cells, for other hardware.
        again: it measures again, or further, what is stored.
        goes_on: there may be something to launch again even if nothing is missing.
        best: it looks for the fastest setting, and ends before all is measured. Only a job can tell when.

    Raises:
        InputError: Slurm refuses the request, or will never run it.
    """
    from bench.launch.slurm.script import job_name, misreads, script

    root = folder.absolute()
    if misreads(root):
        raise InputError(
            f"{str(root)!r} has a %, a backslash or a line break, which Slurm reads as its own",
            where="--out",
            fix="choose another folder with --out",
        )
    name = job_name(root)
    text = script(
        matrix.slurm,
        matrix.launch.nodes,
        name,
        root,
        python=sys.executable,
        folder=Path.cwd(),
        arguments=inner_arguments(where.context, root, once=where.jobs > 1 and matrix.measure.launches == "auto"),
        began=datetime.now(UTC).isoformat(timespec="seconds") if again else None,
    )
    if dry_run:
        typer.echo(text, nl=False)
        return 0
    from bench.cli.jobs_screen import follow
    from bench.sweep import session

    def is_finished() -> bool:
        found = None if again or goes_on or best else _stored(select, root, keep_stale=keep_stale)
        return found is not None and session.is_finished(found)

    if not is_finished():  # nobody has to wait for a job that would find that everything is measured
        _check_installed()
        if refused := follow(root, name, text, where.jobs, is_finished):
            typer.echo("\n".join(refused), err=True)
            return 2
    sweep = _stored(select, root)
    if sweep is None:
        raise InputError("the jobs left no results", where=str(root / "slurm"), fix="see their logs there")
    return _end(sweep, best=best)


def _stored(select: "partial[Selection]", root: Path, *, keep_stale: bool = True) -> "Sweep | None":
    """What the run holds of the selected cells, which depend on the hardware of the nodes; None without such a run."""
    from bench.cli.printing import console
    from bench.cli.progress import Progress
    from bench.sweep import session

    if (hardware := session.hardware_of(root)) is None:
        return None
    matrix, plans, *_ = select(hardware=hardware)
    if hardware.devices < (matrix.slurm.gpus_per_node or 0):  # an earlier run, elsewhere
        return None
    return session.stored(matrix, plans, root, Progress(console()), keep_stale=keep_stale)


def _end(sweep: "Sweep", *, best: bool) -> int:
    """Print what the jobs measured; returns the exit code."""
    from bench.cli.report_files import write_reports
    from bench.cli.run_screen import print_end
    from bench.records.outcome import KINDS
    from bench.sweep import session

    write_reports(sweep.store)
    results = sweep.results()
    print_end(sweep, results)
    found = sweep.store.best()
    if not ((found is not None and found.ended) if best else session.is_finished(sweep)):
        typer.echo(
            "not everything is measured: jobs of other commands have some cells. The same command goes on", err=True
        )
        return 1
    return 1 if any(KINDS[result.outcome.kind].fails for result in results) else 0


def _check_installed() -> None:
    if shutil.which("sbatch", path=os.environ.get("PATH", os.defpath)) is None:
        raise InputError(
            "sbatch is not installed on this machine",
            where="--launcher slurm",
            fix="run this where you submit jobs; --dry-run prints the script, for sbatch to take elsewhere",
        )
