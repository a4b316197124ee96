"""`bench audit`: collectives, dataloader, params."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bench.cli import selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import console, print_document
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.records.cell import AuditKind
    from bench.records.plan import CellPlan
    from bench.report.tables.table import Table
    from bench.sweep.audit import Audited
    from bench.sweep.sweep import Sweep

audit = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Check a cell's collectives, data loading or unused parameters.",
)

HANG_AFTER_S = 20.0
"""An audit's steps are short: if no rank makes progress for this long, they count as hung."""

MatrixArgument = Annotated[
    Path | None,
    typer.Argument(metavar="MATRIX", help="The matrix file whose cells to audit. Without one, the bundled policy."),
]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Steps, or batches, to look at: what a model does may depend on the samples.  [default: measure.steps]",
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Samples per rank.  [default: the cell's fastest stored batch, else the smallest of the matrix, else 1]",
    ),
]


@audit.command()
def collectives(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Steps = None,
    batch: Batch = None,
    out: selection.Out = None,
) -> None:
    """Check that all ranks issue the same collectives.

    If not, shows the first difference with its call sites. Needs no GPU.
    """
    from bench.audit import collectives as judging
    from bench.report.tables import audits
    from bench.store.spool import read_audits
    from bench.units import counted

    def judge(_: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
        issued = read_audits(done.folder, plan.cell.num_processes, judging.Issued)
        verdict = judging.judge(issued, plan.cell.num_processes, done.ended)
        says = f"{verdict.word}, {verdict.says} (batch {done.batch_per_rank}, {counted(done.steps, 'step')})"
        return Finding(verdict.word == "SAME", says, [audits.collectives(done.label, verdict)])

    options = Options(matrix, overrides, backend, axis, select, steps, batch, out)
    _run("collectives", judge, options, hang_after_s=HANG_AFTER_S)


@audit.command()
def dataloader(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Steps = None,
    batch: Batch = None,
    out: selection.Out = None,
) -> None:
    """Check that the data loader keeps up with training.

    Times the loader's batches without a model and compares them with the stored training of the same cell.
    """
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

    _run("dataloader", judge, Options(matrix, overrides, backend, axis, select, steps, batch, out))


@audit.command()
def params(
    matrix: MatrixArgument = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    steps: Steps = None,
    batch: Batch = None,
    zero_grad: Annotated[bool, typer.Option("--zero-grad", help="Also list gradients that are exactly zero.")] = False,
    out: selection.Out = None,
) -> None:
    """List parameters that backward does not reach.

    Says whether find_unused_parameters may be off. Runs in one process, unsharded.
    """
    from bench.audit import params as judging
    from bench.backends import backend_of
    from bench.report.tables import audits
    from bench.store.spool import read_audits

    def judge(_: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
        verdict = judging.judge(
            next(iter(read_audits(done.folder, 1, judging.Looked)), None),
            backend_of(plan.cell).family,
            find_unused=plan.cell.train.find_unused_parameters,
            allow_unused=plan.cell.train.allow_unused,
            ended=done.ended,
        )
        return Finding(verdict.good, verdict.says, [audits.params(done.label, verdict, zero_grad=zero_grad)])

    _run("params", judge, Options(matrix, overrides, backend, axis, select, steps, batch, out))


class Options(NamedTuple):
    """What every audit takes from the command line."""

    matrix: Path | None
    overrides: list[str] | None
    backend: str | None
    axis: list[str] | None
    select: list[str] | None
    steps: int | None
    """None: as many as the cell measures."""
    batch: int | None
    """None: the batch at which the cell was trained."""
    out: Path | None


class Finding(NamedTuple):
    """The verdict on one cell."""

    good: bool
    says: str
    """One sentence."""
    tables: "Sequence[Table]"


def _run(
    kind: "AuditKind",
    judge: "Callable[[Sweep, CellPlan, Audited], Finding]",
    options: Options,
    hang_after_s: float | None = None,
) -> None:
    """Audit one cell after the other, then print everything; exit with 1 unless every finding is good."""
    check_environment()
    findings, folder = _audit_cells(kind, judge, options, hang_after_s)
    sentences = [f"{label}: {finding.says}" for label, finding in findings.items()]
    tables = [table for finding in findings.values() for table in finding.tables if table.rows]
    print_document(f"Audit: {kind}", sentences, tables)
    typer.echo(f"files of the ranks: {folder}")
    if not all(finding.good for finding in findings.values()):
        raise typer.Exit(1)


def _audit_cells(
    kind: "AuditKind",
    judge: "Callable[[Sweep, CellPlan, Audited], Finding]",
    options: Options,
    hang_after_s: float | None,
) -> "tuple[dict[str, Finding], Path]":
    """The findings by the cell's label, and the run's folder."""
    from bench.cli.progress import Progress
    from bench.launch.watch import Limits
    from bench.report.training import batch_to_audit
    from bench.sweep.audit import audit as audit_cell
    from bench.sweep.session import opened

    matrix, plans, hardware, _ = _select(options)
    set_s = matrix.launch.hang_after_s
    limits = Limits(matrix.launch.attempt_timeout_s, set_s or hang_after_s, set_up_counts=set_s is not None)
    folder = options.out or REPORTS / matrix.name
    findings: dict[str, Finding] = {}
    with (
        Progress(console()) as progress,
        opened(matrix, plans, hardware, folder, progress, limits=limits, keep_matrix=True) as sweep,
    ):
        progress.begin(cells=len(plans), attempts=len(plans), finished=0, folder=str(folder), notes=matrix.notes)
        for plan in plans:
            batch = options.batch or batch_to_audit(sweep.store.of_cell(plan.cell), plan.batches)
            audited = audit_cell(sweep, plan, kind, batch, options.steps or plan.cell.measure.steps)
            finding = findings[audited.label] = judge(sweep, plan, audited)
            progress.audited(audited.label, finding.good, finding.says)
    return findings, folder


def _select(options: Options) -> selection.Selection:
    if any(text.partition("=")[0].strip() == "batch" for text in options.select or []):
        raise InputError("an audit looks at one batch", field="--select batch", fix="choose it with --batch")
    matrix, overrides = selection.file_and_overrides(options.matrix, options.overrides)
    selected = selection.read(
        matrix,
        [*([] if matrix is not None else ["name=audit"]), *overrides],
        axis=options.axis,
        backend=options.backend,
        select=options.select,
        batch=options.batch or 1,
    )
    if selected.matrix.command is not None:
        raise InputError("an audit inspects bench's own ranks, and a script has none", field="command")
    return selected
