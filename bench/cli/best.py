"""`bench run --best`: what a plan says of the settings of a sweep, and the search for the fastest of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.errors import InputError

if TYPE_CHECKING:
    from bench.matrix import Matrix
    from bench.records.outcome import Result
    from bench.sweep.best import Planned, Setting
    from bench.sweep.sweep import Sweep

OFF_ON_GPU = 0.6
"""By which share a plan may be too high on a GPU: published peaks are down to 40 % of it, see reports/plan_cpu.md."""


def find_best(sweep: "Sweep", matrix: "Matrix", settle: float | None, budget_s: float | None) -> "list[Result]":
    """Measure until the fastest setting of each task is certain; returns all results of the sweep."""
    from bench.report.advice import choices_of
    from bench.report.widths import spoiled
    from bench.sweep import best
    from bench.sweep.until import AUTO_HALF_WIDTH

    run = sweep.store.plan()
    hunt = best.Hunt(
        margin=settle or AUTO_HALF_WIDTH,
        frugal=settle is None,
        budget_s=budget_s,
        free=choices_of(run.plan if run else None),
        spoiled=spoiled,
        planned=lambda: planned(sweep, matrix),
    )
    best.find_best(sweep, hunt)
    return sweep.results()


def planned(sweep: "Sweep", matrix: "Matrix") -> "Mapping[Setting, Planned]":
    """What a plan says of each setting that has one. Empty where it could say nothing: without a memory limit, a CPU
    whose rates are not known has no plan worth the tracing of models."""
    from bench.cli.plan import capacity_bytes, device_of, paces_of
    from bench.report.plan import PlannedCell, rows
    from bench.sweep.best import Planned
    from bench.sweep.forecasts import forecasts_of
    from bench.sweep.priors import PATIENCE_S

    spec, here = device_of(None, None, None, None)
    fitted, device = paces_of(spec, here), here.device
    limited = any(plan.cell.memory_limit_bytes for plan in sweep.plans)
    if matrix.command is not None or not (limited or fitted or spec.bandwidth_bytes_per_s or device == "cuda"):
        return {}
    sweep.progress.waiting("planning the settings")
    cells = [plan.cell for plan in sweep.plans]
    gpu = next(iter(sweep.machine.accelerators), None)
    try:
        forecasts = forecasts_of(
            cells, device, matrix.workload.name, matrix.workload_folder, gpu=gpu, patience_s=PATIENCE_S
        ).found
    except (InputError, OSError):  # ranks refuse such a workload, too; a full /tmp
        return {}
    shared_bytes = here.memory_bytes if device == "cpu" else None
    of_cells = [
        PlannedCell(
            plan=plan,
            forecast=forecast,
            capacity_bytes=capacity_bytes(plan.cell, forecast, spec, shared_bytes),
            goal=sweep.goal.of(plan.cell) if plan.search else None,
        )
        for plan in sweep.plans
        if (forecast := forecasts.get(plan.cell.id))
    ]
    listed = rows(of_cells, spec, None, fitted.paces if fitted else {})
    estimated = all(row.samples_per_s for row in listed)
    found = {}
    for row in listed:
        cannot = row.cell.impossible if row.searched else row.fits == "no"
        if device == "cuda":
            cannot = not row.searched and row.needed_bytes * (1 - OFF_ON_GPU) > row.cell.capacity_bytes
        at_most = None if row.searched else row.samples_per_s_at_most  # of this batch, and a search tries others
        found[row.cell.plan.cell.id, None if row.searched else row.batch] = Planned(
            fits=not cannot,
            expected=row.samples_per_s if estimated else row.samples_per_s_at_most,
            at_most=at_most,
        )
    return found
