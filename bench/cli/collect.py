"""Makes a report of run folders: the one place that reads for it what they hold."""

import os
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from bench.cli.app import REPORTS

if TYPE_CHECKING:
    import pandas as pd

    from bench.records.best import Best
    from bench.records.claim import Claim
    from bench.records.outcome import Result
    from bench.records.verdict import Probe
    from bench.report.missing import Missing
    from bench.report.tables.sections import Report
    from bench.report.tables.show import Files
    from bench.store.run_folder import Run, Store


def stores_of(folders: Iterable[Path]) -> "list[Store]":
    """These run folders, each once."""
    from bench.store.run_folder import Store

    return [Store(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]


def load(folders: Iterable[Path]) -> "pd.DataFrame":
    """See `bench.load`."""
    from bench.report.render.frame import frame

    stores = stores_of(folders)
    table = frame(collect(stores, claims=[]).records)
    for store in stores:
        for file, why in store.unreadable.items():
            warnings.warn(f"{file} is left out: {why}", stacklevel=3)
    return table


def collect(stores: "Sequence[Store]", claims: "Sequence[Claim] | None" = None) -> "Report":
    """The report of one run or several.

    Args:
        claims: instead of those of the runs.

    Raises:
        InputError: a folder holds no run, or its claims.yaml is wrong.
    """
    from bench.records.plan import COST_OPTIONS
    from bench.report import merge_runs
    from bench.report.advice import choices_of
    from bench.report.controlled import RUN
    from bench.report.tables.sections import Choices, Report

    names = merge_runs.run_names([store.root for store in stores])
    by_name = dict(zip(names, stores, strict=True))
    results = {name: store.results() for name, store in by_name.items()}
    probes = {name: store.probes() for name, store in by_name.items()}
    runs = {name: store.plan() for name, store in by_name.items()}
    bests = {name: best for name, store in by_name.items() if (best := store.best()) is not None}
    absent = {
        name: _missing(store, runs[name], results[name], probes[name], bests.get(name))
        for name, store in by_name.items()
    }
    running = {name for name, store in by_name.items() if store.is_in_use()}
    of_all, searches = merge_runs.merge(results, probes)
    plans = [run.plan if run else None for run in runs.values()]
    report = Report(
        results=of_all,
        probes=searches,
        choices=Choices(
            claims=tuple(_claims(by_name, runs) if claims is None else claims),
            free=frozenset[str]().union(*map(choices_of, plans)),
        ),
        missing=[
            replace(cell, running=name in running, axes={**({RUN: name} if len(stores) > 1 else {}), **cell.axes})
            for name, cells in absent.items()
            for cell in cells
        ],
        calibrations=[learnt for store in stores if (learnt := store.calibration())],
        logs=_logs(stores[0], of_all) if len(stores) == 1 else {},
        folder=PurePath() if len(stores) == 1 else None,
        scripts=any(store.has_scripts(results[name]) for name, store in by_name.items()),
        untils=[until for store in stores if (until := store.until()) is not None],
        bests=bests,
        forecasts={one.cell.id: one for store in stores if (kept := store.forecasts()) for one in kept.forecasts},
        cost_options={name for plan in plans for name in (plan.cost_options if plan else COST_OPTIONS)},
        matrices=_matrices(results, {name: resumes(store, best=name in bests) for name, store in by_name.items()}),
        last={name: command for name, store in by_name.items() if (command := store.last_command())},
    )
    unreadable = {
        str(file.relative_to(store.root) if len(stores) == 1 else file): why
        for store in stores
        for file, why in store.unreadable.items()
    }
    return replace(report, unreadable=unreadable)


def _missing(
    store: "Store", run: "Run | None", results: "Sequence[Result]", probes: "Sequence[Probe]", best: "Best | None"
) -> "tuple[Missing, ...]":
    """What is planned and has no result yet, and how far the walks of its searches got."""
    from bench.report.missing import missing, without_ruled_out

    planned = run.planned if run is not None else []
    walks = {plan.cell.id: store.walked(plan.cell) for plan in planned if plan.search}
    reached = {
        cell: min(max(mark.batch_per_rank for mark in rank.footprints) for rank in ranks)
        for cell, ranks in walks.items()
        if ranks and all(rank.footprints for rank in ranks)
    }
    return without_ruled_out(missing(planned, results, probes, reached), best)


def _logs(store: "Store", results: "Sequence[Result]") -> "dict[str, Files]":
    """The ends of the logs of attempts that failed, by the attempt's slug."""
    from bench.records.outcome import KINDS
    from bench.report.tables.show import LOG_LINES, Files

    failed = [result.attempt for result in results if KINDS[result.outcome.kind].explained_by_logs]
    return {
        attempt.slug: Files(folder=str(store.folder(attempt)), log_tails=store.log_tails(attempt, LOG_LINES))
        for attempt in failed
    }


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
    """What `bench run` takes to measure more of each cell of these runs, which are by their names; of a cell of several
    runs, with the run alone."""
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


def resumes(store: "Store", *, best: bool) -> str | None:
    """The arguments with which `bench run` and `bench probe` go on with a run: ``reports/mine/matrix.yaml --select
    backend=ddp``; None without a matrix, as of imported figures.

    Paths are relative to the current folder where they are below it, as in a job, which gets absolute ones.
    """
    from bench.matrix.select import options
    from bench.report.tables.advice import BEST
    from bench.store.run_folder import MATRIX

    run = store.plan()
    if run is None or run.plan is None or not (store.root / MATRIX).is_file():
        return None
    root = store.root
    here, plain = Path.cwd(), Path(os.path.abspath(root))
    root = plain if plain.resolve() == root.resolve() else root.resolve()  # a/link/../b may be elsewhere than a/b
    root = root.relative_to(here) if root.is_relative_to(here) else root
    words = [str(root / MATRIX), *options(run.plan.cells, run.planned)]
    if (REPORTS / run.plan.matrix).resolve() != root.resolve():
        words += ["--out", str(root)]
    if (root / "slurm").is_dir():
        words += ["--launcher", "slurm"]
    return shlex.join(words) + BEST * best
