"""`bench explain`: why a step takes as long as it does, and why one takes longer than another."""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, cast

import typer

from bench.cli import selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import print_document, print_unreadable
from bench.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue
    from rich.console import Console

    from bench.explain.advice import Advice
    from bench.explain.shown import Tried
    from bench.explain.waterfall import Explained, Judged
    from bench.records.forecast import Forecast
    from bench.records.outcome import Result
    from bench.report.rows import Row
    from bench.report.tables.sections import Report
    from bench.report.tables.table import Table


STEPS = 5
TRIED = "tried.yaml"
"""The matrix of --try, in the run's folder. What it measures goes to a folder beside the run."""
MOST_TRIED = 4
"""Settings that --try measures: those with the largest bounds."""


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CELL [CELL] [RUN]...",
            help="The cell as in `bench show`: its id, its folder's name, the beginning of either, or settings."
            " A second cell, or a second value of a setting, compares: backend=ddp backend=fsdp2 batch=4. Folders are"
            " runs; two of them compare the same cell.  [default: the newest run]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Explain these traces of torch.profiler, of any training, instead of a cell."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=100, metavar="COUNT", help=f"Steps to profile.  [default: {STEPS}]")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Profile again, although the run holds a profile.")] = False,
    try_: Annotated[
        bool,
        typer.Option("--try", help="Measure the cell again with each setting that may help. Takes one cell."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel="Output", help="Also write a page with the bars and a timeline."),
    ] = None,
    format_: Annotated[
        Literal["md"] | None,
        typer.Option("--format", rich_help_panel="Output", help="Print markdown instead of tables for the terminal."),
    ] = None,
) -> None:
    """Explain where the time of a step goes, or why one cell is slower.

    Profiles a few steps in processes of their own, after the measured ones, and keeps the traces. The parts of a step
    sum to it.
    """
    from bench.explain import shown
    from bench.explain.advice import advice
    from bench.explain.waterfall import waterfall

    if trace is not None and (words or try_):
        other = "--try takes a cell" if try_ else f"{' '.join(words or [])!r} names a cell"
        raise InputError(f"explains files, and {other}", where="--trace", fix="leave out one of them")
    cells = [] if trace is not None else named(words or [])
    if html is not None and not html.absolute().parent.is_dir():
        raise InputError("its folder does not exist", where=f"--html {html}", fix="make the folder")
    if html is not None and (html.is_dir() or (html.is_file() and not _is_page(html))):
        raise InputError("exists, and is no page: it would be lost", where=f"--html {html}", fix="name another file")
    if try_ and len(cells) != 1:
        raise InputError("tries settings of one cell, and two are named", where="--try")
    results = [_result(one) for one in cells]
    steps_of = [_of_traces(trace)] if trace is not None else _profiled(cells, results, steps, again=again)
    tables: list[Table] = []
    found = None
    if len(steps_of) == 2:
        found = waterfall(steps_of[0], steps_of[1], _judged(cells, results))
    title, sentences = f"A step of {steps_of[0].name}", []
    if found is not None:
        title = f"{steps_of[1].name} against {steps_of[0].name}"
        sentences = [found.sentence, *([found.doubt] if found.doubt else [])]
        tables.append(shown.difference(found))
    for one in steps_of:
        sentences += shown.sentences(one)
        tables += shown.tables(one)
    for result in results[:1] if len(results) == 1 else []:
        advised = advice(steps_of[0], result.attempt.cell)[:MOST_TRIED]
        tried = _tried(cells[0].run, result, advised) if try_ and advised else ()
        tables += [shown.advised(advised, steps_of[0], *tried)] if advised else []
    if html is not None:
        from bench.explain.picture import sections
        from bench.report.render.html import render

        html.write_text(render(sections(sentences, steps_of, found, tables), title))
    print_document(title, sentences, tables, markdown=format_ == "md")


def _is_page(file: Path) -> bool:
    return file.read_bytes()[:15].lower().startswith(b"<!doctype html")


class Named(NamedTuple):
    """A cell to explain."""

    words: str
    run: Path


def named(words: Sequence[str]) -> list[Named]:
    """The one or two cells that the words name. A setting that stands twice has one value for each of them."""
    folders = [Path(word) for word in words if "=" not in word and Path(word).is_dir()]
    names = [word for word in words if "=" not in word and not Path(word).is_dir()]
    settings: dict[str, list[str]] = {}
    for word in words:
        if "=" in word:
            settings.setdefault(word.partition("=")[0], []).append(word)
    most = max(len(names), len(folders), *(len(values) for values in settings.values()), 0)
    if not names and not settings:
        raise InputError("nothing to explain", fix="name a cell: backend=fsdp2, or traces with --trace DIR")
    if most > 2:
        raise InputError(f"{most} cells are named", allowed="one cell, or two to compare")
    if not folders:
        from bench.store.newest_run import newest

        folders = [newest(REPORTS)]
    return [
        Named(
            words=" ".join([*_nth([names] if names else [], number), *_nth(settings.values(), number)]),
            run=folders[min(number, len(folders) - 1)],
        )
        for number in range(most)
    ]


def _nth(lists: Iterable[Sequence[str]], number: int) -> list[str]:
    """From each list, the value of the cell with this number: the only one, if it has one for both."""
    return [values[min(number, len(values) - 1)] for values in lists]


def _of_traces(folder: Path) -> "Explained":
    from bench.explain import trace
    from bench.explain.divide import divide
    from bench.explain.waterfall import Explained

    return Explained(name=folder.resolve().name, divisions=divide(trace.read_all(trace.find(folder))))


def _profiled(
    cells: Sequence[Named], results: "Sequence[Result]", steps: int | None, *, again: bool
) -> "list[Explained]":
    """The cells' profiles: those that the runs hold, and new ones; also where ``steps`` asks for another number."""
    for run in dict.fromkeys(one.run for one in cells):
        of_run = {result.attempt.slug: result for one, result in zip(cells, results, strict=True) if one.run == run}
        kept = {slug: kept_steps(run, result) for slug, result in of_run.items()}
        missing = [
            result for slug, result in of_run.items() if again or not kept[slug] or steps not in (None, kept[slug])
        ]
        if missing:
            profile(run, missing, steps or STEPS)
    names = [_name(one) for one in cells]
    if len(set(names)) < len(names):  # one cell in two runs
        names = [f"{name} in {one.run.resolve().name}" for name, one in zip(names, cells, strict=True)]
    return [explained(one.run, result, name) for one, result, name in zip(cells, results, names, strict=True)]


def kept_steps(run: Path, result: "Result") -> int:
    """How many profiled steps the run holds of the attempt. 0: not of all ranks, or of an attempt before this one."""
    from bench.audit.profile import Profiled
    from bench.store.spool import read_audits

    files = traces_of(run, result)
    measured_at = datetime.fromisoformat(result.started_at).timestamp()
    if not all(file.is_file() and file.stat().st_mtime >= measured_at and _is_whole(file) for file in files):
        return 0
    ranks = read_audits(files[0].parent, len(files), Profiled)
    return len(ranks[0].unprofiled_times_s) if len(ranks) == len(files) else 0


def _is_whole(file: Path) -> bool:
    try:
        with gzip.open(file) as content:
            while content.read(2**20):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return True


def explained(run: Path, result: "Result", name: str) -> "Explained":
    """A measured attempt by its profile, which the run holds."""
    from bench.audit.profile import Profiled
    from bench.explain import trace
    from bench.explain.divide import divide
    from bench.explain.waterfall import Explained
    from bench.store.spool import read_audits

    files = traces_of(run, result)
    ranks = read_audits(files[0].parent, len(files), Profiled)
    [(row, _)] = _rows(_report(run), [result])
    critical = row.sampled.critical_rank if row.sampled else None
    peaks = [rank.memory for rank in ranks if rank.memory is not None]
    forecast = _forecast(run, result) if peaks else None
    return Explained(
        name=name,
        divisions=divide(trace.read_all(files)),
        measured_s=row.measured.step_time_s_rank_max if row.measured else None,
        unprofiled_s=max((sum(rank.unprofiled_times_s) / len(rank.unprofiled_times_s) for rank in ranks), default=None),
        critical=critical.straggler.rank if critical and critical.straggler else None,
        memory=max(peaks, key=lambda peak: peak.total_bytes, default=None),
        planned=forecast.parts(result.attempt.batch_per_rank) if forecast else {},
    )


def _forecast(run: Path, result: "Result") -> "Forecast | None":
    """What a plan expects of the cell: the run's own plan, or a new one. None where there can be none."""
    from bench.cli.forecasts import forecasts_of
    from bench.store.run_folder import Store

    store, cell = Store(run), result.attempt.cell
    kept, opened = store.forecasts(), store.plan()
    if kept and (found := [one for one in kept.forecasts if one.cell.id == cell.id]):
        return found[0]
    folder = opened.plan.workload_folder if opened and opened.plan else None
    gpu = next(iter(result.machine.accelerators), None)
    made = forecasts_of([cell], result.machine.hardware.device, cell.workload, folder, gpu)
    store.keep_forecasts(made.found.values())
    return made.found.get(cell.id)


def traces_of(run: Path, result: "Result") -> list[Path]:
    """Where the traces of the attempt's ranks are, or will be."""
    from bench.audit.profile import trace_file
    from bench.records.cell import Audit
    from bench.store.run_folder import Store

    cell = result.attempt.cell
    folder = Store(run).folder(Audit(cell=cell, kind="profile", batch_per_rank=result.attempt.batch_per_rank, steps=1))
    return [trace_file(folder, rank) for rank in range(cell.num_processes)]


def _name(one: Named) -> str:
    """``ddp batch=4``: what the user wrote, without what needs no name."""
    return " ".join(word.removeprefix("backend=") for word in one.words.split())


def _result(one: Named) -> "Result":
    """The measured attempt that the words name; the largest batch where they name none."""
    from bench.report.find_cell import find_cell
    from bench.store.run_folder import Store

    store = Store(one.run)
    stored = store.results()
    print_unreadable([store])
    try:
        results = find_cell(stored, one.words)
    except InputError as error:
        error.where = error.where or str(store.root)
        raise
    found = [result for result in results if result.outcome.kind == "ok" and not result.attempt.short]
    if not found:
        raise InputError(
            f"{one.words!r} was not measured: {results[0].outcome.kind}",
            where=str(store.root),
            fix="explain a cell whose attempt is ok, see `bench report`",
        )
    return max(found, key=lambda result: (result.attempt.batch_per_rank, -result.attempt.launch))


def profile(run: Path, results: "Sequence[Result]", steps: int) -> None:
    """Profile the cells of measured attempts in processes of their own; the traces go to the run's folder.

    Raises:
        InputError: the run holds no matrix with these cells, or a profiled attempt does not finish.
    """
    from bench.audit import unfinished_in_words
    from bench.cli.progress import Progress
    from bench.store.run_folder import MATRIX
    from bench.sweep.audit import audit
    from bench.sweep.session import opened

    check_environment()
    file = run / MATRIX
    if not file.is_file():
        raise InputError("holds no matrix, and so no cell to profile", where=str(run), fix="explain traces: --trace")
    matrix, plans, hardware, _ = selection.read(file)
    if matrix.command is not None:
        fix = "profile it in the script, and explain its traces with --trace"
        raise InputError("bench profiles its own ranks, and a script has none", where=str(file), fix=fix)
    by_id = {plan.cell.id: plan for plan in plans}
    for result in results:
        if result.attempt.cell.id not in by_id:
            slug = result.attempt.cell.slug
            raise InputError(f"{slug} is not in the run's matrix", where=str(file), fix="`bench run` measures it anew")
    chosen = [by_id[result.attempt.cell.id] for result in results]
    unique = list({plan.cell.id: plan for plan in chosen}.values())
    with (
        Progress(_aside()) as progress,
        opened(matrix, unique, hardware, run, progress, keep_matrix=True) as sweep,
    ):
        progress.begin(cells=len(unique), attempts=len(chosen), finished=0, folder=str(run), notes=matrix.notes)
        for plan, result in zip(chosen, results, strict=True):
            done = audit(sweep, plan, "profile", result.attempt.batch_per_rank, steps)
            if done.ended is not None:
                words = unfinished_in_words(done.ended)
                raise InputError(f"the profiled attempt did not finish: {words}", where=str(done.folder))
            progress.audited(plan.label, good=True, words="profiled")


def _report(run: Path) -> "Report":
    from bench.cli.collect import collect
    from bench.store.run_folder import Store

    return collect([Store(run)])


def _rows(report: "Report", results: "Sequence[Result]") -> "Iterator[tuple[Row, float]]":
    """Measured attempts as the report of their run shows them, and by which share each may be off."""
    from bench.report.doubts import may_be_off

    summary = report.summary
    off = may_be_off(summary)
    for result in results:
        cell, batch = result.attempt.cell.id, result.attempt.batch_per_rank
        rows = [row for each in summary.cells if each.cell.id == cell for row in each.rows]  # one that thrashes, too
        row = next(row for row in rows if row.batch_per_rank == batch and row.measured and not row.short)
        yield row, off.get(row.id, 0.0)


def _judged(cells: Sequence[Named], results: "Sequence[Result]") -> "Judged":
    """How sure it is that the second step is longer, for as many samples: what a report would say."""
    from bench.explain.waterfall import Judged
    from bench.report.speedup import SpeedUp

    reports = {run: _report(run) for run in {one.run for one in cells}}
    (row, off), (other, other_off) = [
        found for one, result in zip(cells, results, strict=True) for found in _rows(reports[one.run], [result])
    ]
    share, n = (1 + off) * (1 + other_off) - 1, max(report.comparisons for report in reports.values())
    pair = SpeedUp(row=row, reference=other, matched=False, off=share, comparisons=n)
    ratio = pair.ratio  # of rates: the inverse of that of steps
    return Judged(ratio.decides, "" if ratio.has_winner else ratio.word, other.batch_global / row.batch_global)


def _aside() -> "Console":
    """Where progress goes: stdout holds the explanation alone."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _backend_of(content: "dict[str, JsonValue]", name: str) -> "JsonValue":
    """A backend as the matrix has it: of the user's own, with its config."""
    from bench.matrix.matrix_file import MatrixFile

    written = MatrixFile.model_validate(content).values_of("backend")
    return next((each for each in written if isinstance(each, dict) and each["name"] == name), name)


def _tried(run: Path, result: "Result", advised: "Sequence[Advice]") -> "tuple[float | None, dict[str, Tried]]":
    """Measure the cell with each setting, beside the run.

    The cell as it is, too, because other launches differ: its step comes first. Without what failed, and without
    settings of `measure`, which a run has for all its cells.
    """
    from bench.cli.progress import Progress
    from bench.explain.advice import matrix as matrix_of
    from bench.explain.shown import Tried
    from bench.matrix import yaml_file
    from bench.records.cell import Measure
    from bench.report.speedup import SpeedUp
    from bench.store.run_folder import MATRIX
    from bench.sweep.session import opened

    advised = [one for one in advised if one.name not in Measure.model_fields]
    content = cast("dict[str, JsonValue]", yaml_file.read(run / MATRIX).data)
    cell = result.attempt.cell
    axes = {**result.axes, "backend": _backend_of(content, cell.backend)}
    written = matrix_of(content, axes, cell, result.attempt.batch_per_rank, advised)
    out = run.resolve().with_name(f"{run.resolve().name}-try")
    file = run / TRIED
    file.write_text(yaml_file.dump(written))
    matrix, plans, hardware, _ = selection.read(file)
    with (
        Progress(_aside()) as progress,
        opened(matrix, plans, hardware, out, progress, rerun="all") as sweep,
    ):
        progress.begin(cells=len(plans), attempts=len(plans), finished=0, folder=str(out), notes=matrix.notes)
        sweep.prepare()
        measured = [one for one in sweep.run() if one.outcome.kind == "ok"]
    typer.echo(f"tried: {file}, results: {out}", err=True)
    rows = {one.attempt.cell.id: row for one, row in zip(measured, _rows(_report(out), measured), strict=True)}
    now, *others = [rows.get(plan.cell.id) for plan in plans]
    if now is None:
        return None, {}
    found = {}
    for one, tried in zip(advised, others, strict=True):
        if tried is not None and tried[0].measured and (step_s := tried[0].measured.step_time_s_rank_max):
            off = (1 + now[1]) * (1 + tried[1]) - 1
            pair = SpeedUp(row=tried[0], reference=now[0], matched=True, comparisons=len(advised), off=off)
            ratio = pair.ratio
            verdict = "slower" if ratio.has_winner and ratio.estimate < 1 else ratio.word
            found[one.words] = Tried(step_s / one.steps, ratio.estimate, ratio.decides, verdict)
    return now[0].measured.step_time_s_rank_max if now[0].measured else None, found
