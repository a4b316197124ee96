"""audit: collectives, dataloader, params."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bench.cli import selection
from bench.cli.app import REPORTS, app, console, print_document
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.matrix import CellPlan
    from bench.records.cell import AuditKind
    from bench.report.tables.table import Table
    from bench.sweep.audit import Audited
    from bench.sweep.sweep import Sweep

audit = typer.Typer(no_args_is_help=True, help="Look at one property of a cell that throughput does not show.")
app.add_typer(audit, name="audit")

HANG_AFTER_S = 20.0
"""An audit's steps are short; whoever does not come on for so long in one waits for ever."""

MatrixArgument = Annotated[
    Path | None, typer.Argument(help="A matrix file whose cells are audited; without one, the bundled policy.")
]


@audit.command()
def collectives(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to watch.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Samples per rank and step.")] = 1,
    out: selection.Out = None,
) -> None:
    """Do all ranks issue the same collectives? If not: the first difference, with call sites. Needs no GPU."""
    from bench.audit import collectives as judging
    from bench.report.tables import audits
    from bench.store.spool import read_audits

    def judge(_: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
        issued = read_audits(done.folder, plan.cell.num_processes, judging.Issued)
        verdict = judging.judge(issued, plan.cell.num_processes, done.ended)
        says = f"{verdict.word}, {verdict.says}"
        return Finding(verdict.word == "SAME", says, [audits.collectives(done.label, verdict)])

    wanted = Wanted(matrix, overrides, backend, axis, select, steps, batch, out)
    _run("collectives", judge, wanted, hang_after_s=HANG_AFTER_S)


@audit.command()
def dataloader(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Annotated[int, typer.Option(min=1, help="Batches to time, on each rank.")] = 50,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples per rank; else that of the cell's best stored training, or 1.")
    ] = None,
    out: selection.Out = None,
) -> None:
    """Can the loader deliver what training takes? Its batches without a model, beside the stored training."""
    from bench.audit import dataloader as judging
    from bench.report.tables import audits
    from bench.report.training import training
    from bench.store.spool import read_audits

    def judge(sweep: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
        cell = plan.cell
        loaded = read_audits(done.folder, cell.num_processes, judging.Loaded)
        verdict = judging.judge(
            loaded,
            cell.num_processes,
            done.batch_per_rank,
            cell.measure.dataloader_workers,
            training(sweep.store.of_cell(cell), done.batch_per_rank),
            done.ended,
        )
        good = verdict.word not in ("STARVED", "NOT MEASURED")
        table = audits.dataloader(done.label, loaded, done.batch_per_rank, verdict)
        return Finding(good, f"{verdict.word}, {verdict.says}", [table])

    _run("dataloader", judge, Wanted(matrix, overrides, backend, axis, select, steps, batch, out))


@audit.command()
def params(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Annotated[int, typer.Option(min=1, help="Batches to look at: a branch may depend on the samples.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 1,
    zero_grad: Annotated[bool, typer.Option("--zero-grad", help="List gradients of exactly zero, too.")] = False,
    out: selection.Out = None,
) -> None:
    """Which parameters does backward not reach, and may find_unused_parameters be off? In one process, unsharded."""
    from bench.audit import params as judging
    from bench.backends import backend_of
    from bench.report.tables import audits
    from bench.store.spool import read_audits

    def judge(_: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
        verdict = judging.judge(
            next(iter(read_audits(done.folder, 1, judging.Looked)), None),
            backend_of(plan.cell).family,
            find_unused=plan.cell.train.find_unused_parameters,
            ended=done.ended,
        )
        return Finding(verdict.good, verdict.says, [audits.params(done.label, verdict, zero_grad=zero_grad)])

    _run("params", judge, Wanted(matrix, overrides, backend, axis, select, steps, batch, out))


class Wanted(NamedTuple):
    """What the command line says of any audit."""

    matrix: Path | None
    overrides: list[str] | None
    backend: str | None
    axis: list[str] | None
    select: list[str] | None
    steps: int
    batch: int | None
    """None: as it was trained."""
    out: Path | None


class Finding(NamedTuple):
    """What an audit of one cell comes to."""

    good: bool
    says: str
    """In one sentence."""
    tables: "Sequence[Table]"


def _run(
    kind: "AuditKind",
    judge: "Callable[[Sweep, CellPlan, Audited], Finding]",
    wanted: Wanted,
    hang_after_s: float | None = None,
) -> None:
    """Audit one cell after the other, then print everything; exit code 1 when something is not good."""
    from bench.cli.progress import Progress
    from bench.launch.watch import Limits
    from bench.sweep.audit import audit as audit_cell
    from bench.sweep.session import opened

    if any(text.partition("=")[0].strip() == "batch" for text in wanted.select or []):
        raise InputError("an audit looks at one batch", field="--select batch", fix="--batch says at which")
    matrix, overrides = selection.file_and_overrides(wanted.matrix, wanted.overrides)
    loaded, plans, hardware = selection.read(
        matrix,
        [*([] if matrix is not None else ["name=audit"]), *overrides],
        axis=wanted.axis,
        backend=wanted.backend,
        select=wanted.select,
        batch=wanted.batch or 1,
    )
    told_s = loaded.launch.hang_after_s
    limits = Limits(loaded.launch.attempt_timeout_s, told_s or hang_after_s, set_up_counts=told_s is not None)
    findings: dict[str, Finding] = {}
    root = wanted.out or REPORTS / loaded.name
    with (
        Progress(console()) as progress,
        opened(loaded, plans, hardware, root, progress, limits=limits, keep_matrix=True) as sweep,
    ):
        folder = str(sweep.store.root)
        progress.begin(cells=len(plans), attempts=len(plans), finished=0, folder=folder, notes=loaded.notes)
        for plan in plans:
            done = audit_cell(sweep, plan, kind, wanted.batch or _trained(sweep, plan), wanted.steps)
            found = findings[done.label] = judge(sweep, plan, done)
            progress.audited(done.label, found.good, found.says)
    says = [f"{label}: {found.says}" for label, found in findings.items()]
    tables = [table for found in findings.values() for table in found.tables if table.rows]
    print_document(f"Audit: {kind}", says, tables)
    typer.echo(f"what the ranks saw: {folder}")
    if not all(found.good for found in findings.values()):
        raise typer.Exit(1)


def _trained(sweep: "Sweep", plan: "CellPlan") -> int:
    """The batch at which the cell trained best, else its smallest."""
    from bench.report.training import training

    trained = training(sweep.store.of_cell(plan.cell))
    listed = [batch for batch in plan.batches if batch != "probe"]
    return trained.batch_per_rank if trained else min(listed, default=1)
