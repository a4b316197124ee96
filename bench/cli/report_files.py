"""Writes reports: a run's own report.md and report.html, and the file of `bench report --output`."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli import run_matrix

if TYPE_CHECKING:
    from bench.records.calibration import Calibration
    from bench.records.claim import Claim
    from bench.records.forecast import Forecast
    from bench.records.outcome import Result
    from bench.records.until import Until
    from bench.records.verdict import Probe
    from bench.report.missing import Missing
    from bench.report.render.formats import Format
    from bench.report.tables.sections import Report
    from bench.store.run_folder import Store


def write_reports(store: "Store") -> None:
    """`report.md` with its plots, and `report.html`, in the run's own folder."""
    from bench.report.render.formats import FORMATS
    from bench.report.tables.sections import Choices, Report
    from bench.store import last_command

    last = last_command.of_runs({store.root.name: store})
    results, probes, matrix, plan = store.results(), store.probes(), run_matrix.read(store), forecasts([store])
    report = Report(
        results=results,
        probes=probes,
        choices=Choices(claims=claims_of([store], [matrix.claims]), free=choices_of([matrix.choices])),
        missing=absent(store, matrix, results, probes),
        calibrations=calibrations([store]),
        unreadable=unreadable([store]),
        scripts=store.has_scripts(results),
        untils=untils([store]),
        forecasts=plan,
        matrices=matrices({store.root.name: results}, [matrix.arguments]),
        last=last,
    )
    for name in ("md", "html"):
        write_report(store.root / f"report.{name}", report, FORMATS[name])


def absent(
    store: "Store", matrix: run_matrix.RunMatrix, results: "Sequence[Result]", probes: "Sequence[Probe]"
) -> "tuple[Missing, ...]":
    """What the run's matrix plans and has no result yet, and how far the walks of its searches got."""
    from bench.report.missing import missing

    walks = {plan.cell.id: store.walked(plan.cell) for plan in matrix.plans if plan.search}
    reached = {
        cell: min(max(mark.batch_per_rank for mark in rank.footprints) for rank in ranks)
        for cell, ranks in walks.items()
        if ranks and all(rank.footprints for rank in ranks)
    }
    return missing(matrix.plans, results, probes, reached)


def calibrations(stores: "Sequence[Store]") -> "list[Calibration]":
    """What these runs knew of the scatter between launches."""
    return [learnt for store in stores if (learnt := store.calibration())]


def forecasts(stores: "Sequence[Store]") -> "dict[str, Forecast]":
    """The plans that these runs keep, by the cell's id."""
    from bench.records.forecast import KeptPlan
    from bench.store import plans

    kept = [plan for store in stores if (plan := store.load(plans.file(store.root), KeptPlan))]
    return {one.cell.id: one for plan in kept for one in plan.forecasts}


def matrices(
    results: "Mapping[str, Sequence[Result]]", arguments: "Sequence[str | None]"
) -> "dict[tuple[str, str | None], str]":
    """What `bench run` takes to measure more of each cell of these runs; of a cell of several runs, with the run alone.

    Args:
        results: of each run, by its name.
        arguments: of each run; None where it keeps no matrix.
    """
    known = [
        (result.attempt.cell.id, name, words)
        for (name, of_run), words in zip(results.items(), arguments, strict=True)
        for result in of_run
        if words is not None
    ]
    of_cell: dict[str, set[str]] = {}
    for cell, _, words in known:
        of_cell.setdefault(cell, set()).add(words)
    found: dict[tuple[str, str | None], str] = {(cell, name): words for cell, name, words in known}
    return found | {(cell, None): min(words) for cell, words in of_cell.items() if len(words) == 1}


def claims_of(stores: "Sequence[Store]", in_matrix: "Sequence[Sequence[Claim]]") -> "tuple[Claim, ...]":
    """The claims of these runs, each once: of a run's claims.yaml, else of its matrix."""
    from bench.matrix.claims_file import read

    files = [store.root / "claims.yaml" for store in stores]
    claims = [
        claim
        for file, of_matrix in zip(files, in_matrix, strict=True)
        for claim in ((read(file) if file.stat().st_size else ()) if file.exists() else of_matrix)
    ]
    return tuple({claim.model_dump_json(): claim for claim in claims}.values())


def choices_of(in_matrix: "Sequence[Sequence[str]]") -> frozenset[str]:
    """The settings of which the advice picks the best value: what the matrices declare, or the default."""
    from bench.report.advice import CHOICES

    return frozenset[str]().union(*(choices or CHOICES for choices in in_matrix))


def untils(stores: "Sequence[Store]") -> "list[Until]":
    """How `bench run --until` ended, for each run that was asked to go on."""
    return [until for store in stores if (until := store.until()) is not None]


def unreadable(stores: "Sequence[Store]") -> dict[str, str]:
    """The files of these runs that could not be read and why; with the folder where there are several runs."""
    return {
        str(file.relative_to(store.root) if len(stores) == 1 else file): why
        for store in stores
        for file, why in store.unreadable.items()
    }


def write_report(output: Path, report: "Report", form: "Format") -> None:
    """Write ``report`` to a file; a format that links to charts gets them in `plots/` beside it, unless the file is a
    stream."""
    from bench.report.render.formats import chart_files

    beside = form.links_charts and not is_stream(output)
    _write(output, form.render(report, "plots" if beside else None))
    for name, drawing in chart_files(report).items() if beside else ():
        _write(output.parent / "plots" / name, drawing)


def is_stream(output: Path) -> bool:
    """``/dev/stdout``, or a pipe."""
    return output.exists() and not output.is_file() and not output.is_dir()


def _write(output: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, and make its folder if necessary; a stream is written directly."""
    from bench.store.spool import write_bytes

    data = content.encode() if isinstance(content, str) else content
    if is_stream(output):
        with output.open("wb") as stream:
            stream.write(data)
    elif output.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(output, data)
