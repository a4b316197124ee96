"""`bench audit`: collectives, dataloader, params."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from bench.cli import selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import console, print_document
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.audit.dataloader import Training
    from bench.records.cell import AuditKind
    from bench.records.outcome import Result
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
"""The steps of an audit of collectives are short: if no rank makes progress for this long, they count as hung."""


class Options(NamedTuple):
    """What every audit takes from the command line."""

    matrix: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX", help="The matrix file whose cells to audit. Without one, the bundled policy."),
    ] = None
    overrides: selection.Overrides = None
    backend: selection.Backend = None
    axis: selection.Axis = None
    select: selection.Select = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Steps, or batches, to look at: what a model does may depend on the samples."
            "  [default: measure.steps]",
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Samples per rank.  [default: the cell's fastest stored batch, else the smallest of the matrix, else"
            " 1]",
        ),
    ] = None
    out: selection.Out = None


class Finding(NamedTuple):
    """The verdict on one cell."""

    good: bool
    says: str
    """One sentence."""
    tables: "Sequence[Table]"


def _command(judge: Callable[..., Finding]) -> None:
    """Add a command with the name and the help of ``judge``, which judges one audited cell. It takes `Options` and the
    keyword arguments of ``judge``."""

    def command(**given: Any) -> None:
        options = Options(**{name: given.pop(name) for name in Options._fields})
        _run(cast("AuditKind", judge.__name__), partial(judge, **given), options)

    keyword = inspect.Parameter.KEYWORD_ONLY
    *shared, out = (one.replace(kind=keyword) for one in inspect.signature(Options).parameters.values())
    own = [one for one in inspect.signature(judge).parameters.values() if one.kind is keyword]
    command.__signature__ = inspect.Signature([*shared, *own, out])  # type: ignore[attr-defined]
    command.__doc__ = judge.__doc__
    audit.command(judge.__name__)(command)


@_command
def collectives(_: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
    """Check that all ranks issue the same collectives.

    If not, shows the first difference with its call sites. Needs no GPU.
    """
    from bench.audit import collectives as judging
    from bench.cli import audit_tables
    from bench.store.spool import read_audits
    from bench.units import counted

    issued = read_audits(done.folder, plan.cell.num_processes, judging.Issued)
    verdict = judging.judge(issued, plan.cell.num_processes, done.ended)
    says = f"{verdict.word}, {verdict.says} (batch {done.batch_per_rank}, {counted(done.steps, 'step')})"
    return Finding(verdict.word == "SAME", says, [audit_tables.collectives(done.label, verdict)])


@_command
def dataloader(sweep: "Sweep", plan: "CellPlan", done: "Audited") -> Finding:
    """Check that the data loader keeps up with training.

    Times the loader's batches without a model and compares them with the stored training of the same cell.
    """
    from bench.audit import dataloader as judging
    from bench.cli import audit_tables
    from bench.store.spool import read_audits

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
    table = audit_tables.dataloader(done.label, loaded, done.batch_per_rank, verdict)
    return Finding(good, f"{verdict.word}, {verdict.says}", [table])


@_command
def params(
    _: "Sweep",
    plan: "CellPlan",
    done: "Audited",
    *,
    zero_grad: Annotated[bool, typer.Option("--zero-grad", help="Also list gradients that are exactly zero.")] = False,
) -> Finding:
    """List parameters that backward does not reach.

    Says whether find_unused_parameters may be off. Runs in one process, unsharded.
    """
    from bench.audit import params as judging
    from bench.backends import backend_of
    from bench.cli import audit_tables
    from bench.store.spool import read_audits

    verdict = judging.judge(
        next(iter(read_audits(done.folder, 1, judging.Looked)), None),
        of_ddp=backend_of(plan.cell).family == "ddp",
        find_unused=plan.cell.train.find_unused_parameters,
        allow_unused=plan.cell.train.allow_unused,
        ended=done.ended,
    )
    return Finding(verdict.good, verdict.says, [audit_tables.params(done.label, verdict, zero_grad=zero_grad)])


def _run(
    kind: "AuditKind",
    judge: "Callable[[Sweep, CellPlan, Audited], Finding]",
    options: Options,
) -> None:
    """Audit one cell after the other, then print everything; exit with 1 unless every finding is good."""
    from bench.cli.progress import Progress
    from bench.launch.watch import Limits
    from bench.sweep.audit import audit as audit_cell
    from bench.sweep.session import opened

    check_environment()
    matrix, plans, hardware, _ = _select(options)
    set_s = matrix.launch.hang_after_s
    patience_s = HANG_AFTER_S if set_s is None and kind == "collectives" else set_s
    limits = Limits(matrix.launch.attempt_timeout_s, patience_s, set_up_counts=set_s is not None)
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
    sentences = [f"{label}: {finding.says}" for label, finding in findings.items()]
    tables = [table for finding in findings.values() for table in finding.tables if table.rows]
    print_document(f"Audit: {kind}", sentences, tables)
    typer.echo(f"files of the ranks: {folder}")
    if not all(finding.good for finding in findings.values()):
        raise typer.Exit(1)


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


def training(results: "Sequence[Result]", batch_per_rank: int | None = None) -> "Training | None":
    """The full measurement of one cell, of this batch or the best one; None where there is none."""
    from bench.audit.dataloader import Training
    from bench.report.summary import summarize

    cells = summarize(results).cells  # more than one if the cell ran on unlike machines
    rows = [row for cell in cells for row in cell.rows if row.batch_per_rank == batch_per_rank and not row.short]
    if batch_per_rank is None:
        rows = [cell.best for cell in cells if cell.best]
    row = next((row for row in rows if row.measured), None)
    if row is None or row.measured is None:
        return None
    return Training(
        batch_per_rank=row.batch_per_rank,
        samples_per_s_global=row.measured.samples_per_s_global,
        dataload_wait_share=None if row.phases is None else row.phases.share("dataload_wait"),
    )


def batch_to_audit(results: "Sequence[Result]", planned: Sequence[int]) -> int:
    """The batch at which the cell trained fastest, else the smallest that is planned, else 1."""
    fastest = training(results)
    return fastest.batch_per_rank if fastest else min(planned, default=1)
