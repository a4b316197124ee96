"""The plans from which searches begin."""

from pathlib import Path
from typing import Any

import pytest
from examples import GIB, cell
from examples import forecast as by_hand
from test_sweep import LIMIT, Ranks, plan, swept

from bench.records.forecast import Forecast, Line
from bench.records.machine import Hardware
from bench.search import Prior
from bench.sweep import priors
from bench.sweep.forecasts import Forecasts
from bench.sweep.priors import Priors, prior_of

GPU = Hardware(device="cuda", devices=8, cores=64, memory_bytes=80 * GIB)
CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=8 * GIB)


def forecast(device: Any = "cpu", limit_bytes: int | None = LIMIT) -> Forecast:
    """A tenth of 2 GiB at batch 0, with as much outside of tensors, and a tenth for each sample."""
    tenth = LIMIT // 10
    return by_hand(
        of=cell("ddp", memory_limit_bytes=limit_bytes),
        parameters=1,
        device=device,
        lines=(Line(when="backward", parts={"weights": tenth}, fixed_bytes=0.0, sample_bytes=tenth - 10.0),),
        input_bytes=10,
        allowance_bytes=tenth,
    )


@pytest.mark.parametrize(
    ("device", "limit_bytes", "hardware", "at_zero", "at_two"),
    [
        ("cpu", LIMIT, CPU, 0.2, 0.4),
        ("cuda", None, GPU, 0.005, 0.01),  # of 80 GiB
        ("cuda", LIMIT, GPU, 0.1, 0.3),  # the limit does not count what is outside of tensors
    ],
)
def test_a_prior_is_a_share_of_what_a_rank_may_use(
    device: Any, limit_bytes: int | None, hardware: Hardware, at_zero: float, at_two: float
) -> None:
    prior = prior_of(forecast(device, limit_bytes), hardware)
    assert (prior.at(0), prior.at(2)) == pytest.approx((at_zero, at_two), rel=1e-6)


class Plans:
    """Forecasts of ddp, and how often they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        monkeypatch.setattr(priors, "forecasts_of", self.of)

    def of(self, cells: Any, *_: Any, **__: Any) -> Forecasts:
        self.asked.append([one.backend for one in cells])
        return Forecasts({one.id: forecast() for one in cells if one.backend == "ddp"}, {})


def test_all_searches_are_planned_at_once_when_the_first_one_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, said = Plans(monkeypatch), list[str]()
    cells = [plan("ddp", "probe"), plan("fsdp", "probe"), plan("zero2", 4)]
    made = Priors(cells, CPU, None, said.append)
    assert plans.asked == []
    assert isinstance(made.of(cells[0].cell), Prior)
    assert made.of(cells[1].cell) is None
    assert plans.asked == [["ddp", "fsdp"]]
    assert said == ["planning the memory of searches"]


def test_a_search_with_a_plan_walks_only_where_the_plan_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 fit by the plan."""
    plans = Plans(monkeypatch)
    monkeypatch.setattr(Ranks, "sample_gib", 0.86)  # 8 samples hold 98 % of the capacity
    cells = [plan("ddp", "probe"), plan("fsdp", "probe")]
    made = Priors(cells, CPU, None, lambda _: None)
    right, said = swept(tmp_path / "right", cells, fits=8, priors=made, max_batch=64)
    first = [line for line in said if "ddp batch" in line]
    assert "ddp batch 8: limit about 8" in first[0]
    assert right.count("walk") == 1  # fsdp has no plan
    wrong, _ = swept(tmp_path / "wrong", cells, fits=3, priors=made, max_batch=64)
    assert wrong.count("walk") == 2
    again, _ = swept(tmp_path / "right", cells, fits=8, priors=made, max_batch=64)
    assert again == []
    assert len(plans.asked) == 1


def test_a_search_that_is_finished_asks_for_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, cells = Plans(monkeypatch), [plan("ddp", "probe")]
    swept(tmp_path, cells, fits=2)
    swept(tmp_path, cells, fits=2, priors=Priors(cells, CPU, None, lambda _: None))
    assert plans.asked == []
