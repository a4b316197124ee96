"""Makes a report of run folders: the one place that reads for it what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.cli import resume

if TYPE_CHECKING:
    from bench.records.claim import Claim
    from bench.records.forecast import Forecast
    from bench.records.outcome import Result
    from bench.records.verdict import Probe
    from bench.report.missing import Missing
    from bench.report.tables.sections import Report
    from bench.store.run_folder import Run, Store


def collect(stores: "Sequence[Store]", claims: "Sequence[Claim] | None" = None) -> "Report":
    """The report of one run or several.

    Args:
        claims: instead of those of the runs.

    Raises:
        InputError: a folder holds no run, or its claims.yaml is wrong.
    """
    from bench.report import merge_runs
    from bench.report.advice import CHOICES
    from bench.report.contract import RUN
    from bench.report.tables.sections import Choices, Report
    from bench.store import last_command

    names = merge_runs.run_names([store.root for store in stores])
    by_name = dict(zip(names, stores, strict=True))
    results = {name: store.results() for name, store in by_name.items()}
    probes = {name: store.probes() for name, store in by_name.items()}
    runs = {name: store.plan() for name, store in by_name.items()}
    absent = {name: _missing(store, runs[name], results[name], probes[name]) for name, store in by_name.items()}
    of_all, searches = merge_runs.merge(results, probes)
    choices = [run.plan.choices if run and run.plan else () for run in runs.values()]
    report = Report(
        results=of_all,
        probes=searches,
        choices=Choices(
            claims=tuple(_claims(by_name, runs) if claims is None else claims),
            free=frozenset[str]().union(*(each or CHOICES for each in choices)),
        ),
        missing=[
            replace(cell, axes={RUN: name, **cell.axes}) if len(stores) > 1 else cell
            for name, cells in absent.items()
            for cell in cells
        ],
        calibrations=[learnt for store in stores if (learnt := store.calibration())],
        scripts=any(store.has_scripts(results[name]) for name, store in by_name.items()),
        untils=[until for store in stores if (until := store.until()) is not None],
        forecasts=_forecasts(stores),
        matrices=_matrices(results, {name: resume.arguments(store) for name, store in by_name.items()}),
        last=last_command.of_runs(by_name),
    )
    unreadable = {
        str(file.relative_to(store.root) if len(stores) == 1 else file): why
        for store in stores
        for file, why in store.unreadable.items()
    }
    return replace(report, unreadable=unreadable)


def _missing(
    store: "Store", run: "Run | None", results: "Sequence[Result]", probes: "Sequence[Probe]"
) -> "tuple[Missing, ...]":
    """What is planned and has no result yet, and how far the walks of its searches got."""
    from bench.report.missing import missing

    planned = run.planned if run is not None else []
    walks = {plan.cell.id: store.walked(plan.cell) for plan in planned if plan.search}
    reached = {
        cell: min(max(mark.batch_per_rank for mark in rank.footprints) for rank in ranks)
        for cell, ranks in walks.items()
        if ranks and all(rank.footprints for rank in ranks)
    }
    return missing(planned, results, probes, reached)


def _forecasts(stores: "Sequence[Store]") -> "dict[str, Forecast]":
    """The plans that these runs keep, by the cell's id."""
    from bench.records.forecast import KeptPlan
    from bench.store import plans

    kept = [plan for store in stores if (plan := store.load(plans.file(store.root), KeptPlan))]
    return {one.cell.id: one for plan in kept for one in plan.forecasts}


def _claims(stores: "Mapping[str, Store]", runs: "Mapping[str, Run | None]") -> "list[Claim]":
    """The claims of these runs, each once: of a run's claims.yaml, else of its matrix."""
    from bench.matrix.claims_file import read

    found: list[Claim] = []
    for name, store in stores.items():
        file, run = store.root / "claims.yaml", runs[name]
        if file.exists():
            found += read(file) if file.stat().st_size else ()
        elif run is not None and run.plan is not None:
            found += run.plan.claims
    return list({claim.model_dump_json(): claim for claim in found}.values())


def _matrices(
    results: "Mapping[str, Sequence[Result]]", arguments: "Mapping[str, str | None]"
) -> "dict[tuple[str, str | None], str]":
    """What `bench run` takes to measure more of each cell of these runs; of a cell of several runs, with the run alone.

    Args:
        results: of each run, by its name.
        arguments: of each run; None where it keeps no matrix.
    """
    known = [
        (result.attempt.cell.id, name, words)
        for name, of_run in results.items()
        for result in of_run
        if (words := arguments[name]) is not None
    ]
    of_cell: dict[str, set[str]] = {}
    for cell, _, words in known:
        of_cell.setdefault(cell, set()).add(words)
    found: dict[tuple[str, str | None], str] = {(cell, name): words for cell, name, words in known}
    return found | {(cell, None): min(words) for cell, words in of_cell.items() if len(words) == 1}
