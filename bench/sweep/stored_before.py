"""What a sweep finds in its folder before it starts, in sentences."""

import json

from bench.records.base import written
from bench.records.json_diff import differing_keys, flat
from bench.records.sources import named
from bench.sweep.reuse import RERUN_KINDS
from bench.sweep.sweep import Sweep
from bench.units import counted


def stored_before(sweep: Sweep) -> list[str]:
    """Sentences on stored results that cannot be read, that other sources made, that have other settings, and that
    failed."""
    return [*_unreadable(sweep), *_stale(sweep), *_other_settings(sweep), *_failed(sweep)]


def _other_settings(sweep: Sweep) -> list[str]:
    """A sentence on stored results with the axes of these cells and other settings, such as those of a run that was
    started with ``measure.steps=30``; none if there are none."""
    planned = {json.dumps(plan.axes): plan.cell for plan in sweep.plans}
    run, slugs = sweep.store.plan(), {cell.slug for cell in planned.values()}
    if run is None or slugs.issuperset(run.cells):
        return []
    differing, n_results = dict[str, None](), 0
    for result in sweep.store.results():
        cell = planned.get(json.dumps(result.axes))
        if cell is not None and cell.id != result.attempt.cell.id:
            n_results += 1
            stored, now = (flat(one.model_dump(mode="json")) for one in (result.attempt.cell, cell))
            differing |= dict.fromkeys(
                f"{name} {written(stored.get(name))}, now {written(now.get(name))}"
                for name in differing_keys(stored, now)
            )
    if not n_results:
        return []
    has, stays, it = ("has", "stays", "it") if n_results == 1 else ("have", "stay", "them")
    words = f"{counted(n_results, 'stored result')} {has} other settings ({', '.join(differing)})"
    return [f"{words} and {stays} in the report: both will be reported; with those settings again, a run resumes {it}"]


def _failed(sweep: Sweep) -> list[str]:
    """A sentence on the stored attempts that failed, and how to measure them again; none if there are none."""
    stored = [
        result
        for plan in sweep.plans
        for result in sweep.store.of_cell(plan.cell)
        if sweep.reuse.stored(result.attempt)
    ]
    failed = sum(result.outcome.kind in RERUN_KINDS["failed"] for result in stored)
    words = f"{counted(failed, 'stored attempt')} failed or hung: --rerun failed measures them again"
    return [words] if failed else []


def _stale(sweep: Sweep) -> list[str]:
    """A sentence on the stored results that other sources made; none if there are none."""
    stored = [result for plan in sweep.plans for result in sweep.results_of(plan)]
    stale = [files for result in stored if (files := sweep.reuse.changed(result))]
    if not stale:
        return []
    words = f"{counted(len(stale), 'stored result')} {'was' if len(stale) == 1 else 'were'} made by older code"
    changed = named({file for files in stale for file in files})
    then = (
        "kept, and marked in the report"
        if sweep.keep_stale
        else "measured again; --keep-stale keeps them, and --out measures into another folder, for bench compare"
    )
    return [f"{words} ({changed} changed): {then}"]


def _unreadable(sweep: Sweep) -> list[str]:
    """A sentence on each stored file of these cells that cannot be read."""
    for plan in sweep.plans:
        sweep.store.of_cell(plan.cell)
        sweep.store.probe(plan.cell)
    return [
        f"{file.relative_to(sweep.store.root)} cannot be read ({why}): "
        + ("written again" if file.name == "run.json" else "its attempt is measured again")
        for file, why in sweep.store.unreadable.items()
    ]
