"""Lower bounds of a step against every stored result under reports/."""

from pathlib import Path
from statistics import median

import pytest

from bench.report.plan import Checked, check
from bench.report.summary import summarize
from bench.store import plans
from bench.store.run_folder import Store

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(file.parent for file in REPORTS.glob("*/run.json"))
MEDIAN = {"plan-tiny": 0.05, "plan-small": 0.05, "plan-gpt2": 0.07, "plan-llama": 0.07, "plan-t5": 0.07}
"""The most that the median error of a plan may be, by run."""
BOUNDED = set(MEDIAN)
"""Runs with a calibrated device. The rates of other machines are not known: without a bound, nothing is proved."""


def checked(run: Path) -> list[Checked]:
    store, plan = Store(run), plans.read(run)
    learnt = store.calibration()
    forecasts = {one.cell.id: one for one in plan.forecasts} if plan else {}
    return check(summarize(store.results()), forecasts, learnt.rates if learnt else None)


def test_every_run_with_a_calibrated_device_is_bounded() -> None:
    bounded = {run.name for run in RUNS if any(one.least_s is not None for one in checked(run))}
    assert bounded == BOUNDED


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_no_step_was_shorter_than_its_lower_bound(name: str) -> None:
    compared = checked(REPORTS / name)
    assert all(one.least_s and one.step_s for one in compared)
    assert [one.name for one in compared if (one.least_s or 0) > (one.step_s or 0)] == []


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_counted_tensors_are_near_their_plan(name: str) -> None:
    compared = checked(REPORTS / name)
    assert all(one.tensors for one in compared)
    errors = [abs(one.error) for one in compared]
    assert len(errors) == len(Store(REPORTS / name).results()) >= 20
    assert median(errors) <= MEDIAN[name]
    assert max(errors) <= 0.05
