"""What fits, and the bounds of the time, of a forecast made by hand."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from examples import cell, ok, result, rss
from examples import forecast as planned_by_hand

from bench.records.calibration import Rates
from bench.records.devices import DeviceSpec, spec_of
from bench.records.forecast import Forecast, Line
from bench.records.plan import CellPlan
from bench.records.verdict import Goal
from bench.report.estimate import bounds
from bench.report.plan import Checked, PlannedCell, check, rows
from bench.report.rows import RowId
from bench.report.summary import summarize
from bench.report.tables import plan as tables
from bench.report.tables.sections import Report
from bench.report.tables.table import Table
from bench.store.run_folder import Store

DEVICE = DeviceSpec(
    name="mine",
    memory_bytes=1200,
    bf16_flops_per_s=100.0,
    fp32_flops_per_s=10.0,
    bandwidth_bytes_per_s=1000.0,
    link_bytes_per_s=50.0,
    source="a test",
)


def forecast(backend: str = "ddp", parameters: int = 100) -> Forecast:
    return planned_by_hand(
        backend,
        parameters=parameters,
        device="cuda",
        lines=(Line(when="backward", parts={"weights": 200, "moments": 800}, fixed_bytes=0.0, sample_bytes=10.0),),
        flops={"bfloat16": (0.0, 400.0), "float32": (5.0, 0.0)},
    )


def planned(*batches: int | str, capacity: int = 1200) -> PlannedCell:
    return PlannedCell(
        plan=CellPlan(
            cell=cell(),
            batches=tuple(batch for batch in batches if isinstance(batch, int)),
            search="probe" in batches,
            axes={"backend": "ddp"},
        ),
        forecast=forecast(),
        capacity_bytes=capacity,
    )


def test_what_fits_for_sure_what_may_and_what_cannot() -> None:
    listed = rows([planned(1, 20, 50)], DEVICE)
    assert [row.fits for row in listed] == ["yes", "close", "no"]


def test_a_listed_batch_may_fit_where_no_batch_of_the_search_does() -> None:
    goal = Goal(granularity=1024, max_batch=1024)
    assert replace(planned("probe"), goal=goal).impossible
    assert not replace(planned(4, "probe"), goal=goal).impossible


def test_a_search_is_planned_at_its_largest_batch() -> None:
    cells = planned("probe")
    (row,) = rows([cells], DEVICE)
    assert (row.batch, row.searched, cells.largest, cells.range) == (20, True, 20, (9, 33))
    assert not cells.impossible
    assert planned("probe", capacity=500).impossible
    assert rows([planned("probe", capacity=500)], DEVICE)[0].batch == 1


def test_a_step_takes_at_least_what_the_rates_allow() -> None:
    found = bounds(forecast(), DEVICE, 2)
    assert found.compute_s == pytest.approx(2 * 400 / 100 + 5 / 10)
    # weights twice, masters and moments read and written, what forward keeps written and read
    assert found.memory_s == pytest.approx((2 * 200 + 2 * (400 + 800) + 2 * 20) / 1000)
    # an all-reduce of bf16 gradients on two ranks sends them once in a ring, and half of that if a switch reduces
    assert found.communication_s == pytest.approx(200 / 50 / 2)
    assert (found.step_s, found.binds) == (found.compute_s, "compute")
    assert found.apart_s == pytest.approx(8.5 + 2.0)


def test_bounds_count_what_is_trained() -> None:
    whole = forecast()
    lean = whole.model_copy(
        update={"regime": whole.regime.model_copy(update={"trained_parameters": 10, "gradient_parameters": 10})}
    )
    found = bounds(lean, DEVICE, 2)
    # Backward may leave out frozen weights.
    assert found.memory_s == pytest.approx((2 * 100 + 2 * 10 + 2 * (40 + 80) + 2 * 20) / 1000)
    assert found.communication_s == pytest.approx(20 / 50 / 2)


def test_what_is_not_known_bounds_nothing() -> None:
    bare = DeviceSpec(name="bare", memory_bytes=1, source="a test")
    found = bounds(forecast(), bare, 1)
    assert (found.step_s, found.apart_s, found.binds) == (None, None, None)
    whole = forecast()
    zero3 = whole.model_copy(update={"regime": whole.regime.model_copy(update={"sharding": "zero3"})})
    assert bounds(zero3, DEVICE, 1).communication_s is None  # its formula is an upper bound
    titles = [table.title for table in tables.tables(rows([planned(1)], bare), bare)]
    assert len(titles) == 2


def test_price_is_of_one_device() -> None:
    (row,) = rows([planned(2)], DEVICE, price=1.0)
    assert row.samples_per_s_at_most == pytest.approx(4 / 8.5)
    assert row.samples_per_unit_at_most == pytest.approx(4 / 8.5 * 3600 / 2)
    assert rows([planned(2)], DEVICE)[0].samples_per_unit_at_most is None


def test_the_page_says_what_cannot_fit_and_what_is_not_planned() -> None:
    unplanned = PlannedCell(
        plan=CellPlan(cell=cell("fsdp"), batches=(1,), axes={"backend": "fsdp"}),
        forecast=None,
        reason="muon keeps other state than AdamW",
        capacity_bytes=1200,
    )
    cells = [planned("probe", capacity=500), unplanned]
    said = " ".join(tables.sentences(cells, DEVICE, 2))
    assert said.startswith("pi07 tiny, 100 parameters. 2 × mine with ")
    assert "At a third batch, traced peaks differ from the linear prediction by at most 0.0 %." in said
    assert "Cannot fit at any batch that may be tried: ddp." in said
    assert "Not planned: fsdp: muon keeps other state than AdamW." in said
    listed = rows(cells, DEVICE, price=2.0)
    memory, largest, time = tables.tables(listed, DEVICE)
    assert memory.rows[0][-1] == "NO"
    assert largest.rows[0][2] == "0"
    assert time.headers[-1].startswith("samples per unit of price")
    record, without = tables.records(listed, cells)
    assert (record["fits"], record["largest_batch"], record["weights_bytes"]) == ("no", 0, 200)
    assert (without["backend"], without["reason"]) == ("fsdp", "muon keeps other state than AdamW")


def test_devices_are_found_by_both_names() -> None:
    short, driver = spec_of("a100-80gb"), spec_of("NVIDIA A100-SXM4-80GB")
    assert short == driver
    assert short is not None
    assert (short.memory_bytes, short.bf16_flops_per_s) == (80 * 2**30, 312e12)
    assert spec_of("A100") is None


def test_a_plan_beside_measurements_is_confirmed_or_refuted() -> None:
    close, far = (
        Checked(
            id=RowId(("ddp-1",), 1, short=False),
            name="ddp",
            planned_bytes=planned,
            measured_bytes=100,
            when="backward",
        )
        for planned in (95.0, 80.0)
    )
    assert (close.confirmed, far.confirmed) == (True, False)
    assert far.error == pytest.approx(-0.2)
    assert "median error 12.5 %, worst 20.0 %. 1 refuted" in tables.verdict([close, far])
    assert [row[-1] for row in tables.check_table([close, far]).rows] == ["CONFIRMED", "REFUTED"]
    assert [record["confirmed"] for record in tables.check_records([close, far])] == [True, False]
    assert tables.verdict([]) == "Nothing that was measured has a plan."


def test_only_measured_rows_of_planned_cells_are_checked() -> None:
    summary = summarize([result(backend="ddp", batch=2), result(backend="fsdp", batch=2)])
    cells = {one.cell.backend: one.cell.id for one in summary.cells}
    on_cpu = forecast().model_copy(update={"device": "cpu"})
    (checked,) = check(summary, {cells["ddp"]: on_cpu})
    assert (checked.id.batch_per_rank, checked.planned_bytes, checked.tensors, checked.least_s) == (
        2,
        1020.0,
        False,
        None,
    )
    assert check(summary, {cells["ddp"]: forecast()}) == []  # a plan for a GPU


def test_counted_tensors_are_held_against_tensors_and_the_step_against_its_bound() -> None:
    counted = result(backend="ddp", batch=2, outcome=ok(memory=rss(1.0).model_copy(update={"peak_tensor_bytes": 1000})))
    summary = summarize([counted])
    on_cpu = forecast().model_copy(update={"device": "cpu", "allowance_bytes": 7})
    (cells,) = summary.cells
    rates = Rates(bf16_flops_per_s=1e6, fp32_flops_per_s=1e5, bandwidth_bytes_per_s=1e9, link_bytes_per_s=1e9, trials=1)
    (one,) = check(summary, {cells.cell.id: on_cpu}, rates)
    assert (one.tensors, one.measured_bytes, one.planned_bytes) == (True, 1000, 1020.0)
    assert one.least_s is not None
    assert one.least_s > 0
    report = Report(results=[counted], forecasts={cells.cell.id: on_cpu})
    (table,) = [section for section in report.sections if section.title == "Plan and measurement"]
    assert isinstance(table, Table)
    assert table.notes[0].startswith("1 peak: median error 2.0 %")
    (record,) = report.records
    assert (record["planned_peak_bytes"], record["plan_confirmed"]) == (1020, True)
    assert not any(section.title == "Plan and measurement" for section in Report(results=[counted]).sections)


def test_a_record_has_the_plan_beside_its_own_measurement() -> None:
    runs = [result(ok(memory=rss(gib)), axes={"run": name}) for name, gib in (("a", 1.0), ("b", 2.0))]
    runs = [one.model_copy(update={"attempt": runs[0].attempt}) for one in runs]
    on_cpu = forecast().model_copy(update={"device": "cpu", "allowance_bytes": 2**29})
    records = Report(results=runs, forecasts={runs[0].attempt.cell.id: on_cpu}).records
    assert [record["plan_confirmed"] for record in records] == [True, False]


# Against every stored result under reports/


REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(file.parent for file in REPORTS.glob("*/run.json"))
MEDIAN = {"plan-tiny": 0.05, "plan-small": 0.05, "plan-gpt2": 0.07, "plan-llama": 0.07, "plan-t5": 0.07}
"""The most that the median error of a plan may be, by run."""
BOUNDED = set(MEDIAN)
"""Runs with a calibrated device. The rates of other machines are not known: without a bound, nothing is proved."""


def checked(run: Path) -> list[Checked]:
    store = Store(run)
    plan = store.forecasts()
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
