"""Estimates of steps whose work and seconds were made up, so that the answer is known."""

import random
from collections.abc import Mapping
from functools import partial

import examples
import pytest
from examples import regime

from bench.records.calibration import Pace
from bench.report.estimate import SPARE, Step, estimate_s, left_out, paces, work

SECONDS = {"bfloat16_flops": 2e-9, "moved_bytes": 3e-10, "operators": 1e-5, "sent_bytes": 5e-9}


def steps(number: int = 12, seed: int = 0) -> list[Step]:
    """Of cells with random work, of which each kind takes exactly its seconds."""
    draw = random.Random(seed)
    found = []
    for index in range(number):
        amounts = {kind: draw.uniform(1, 3) * 0.01 / seconds for kind, seconds in SECONDS.items()}
        if index % 3 == 0:
            del amounts["sent_bytes"]  # a single rank
        found.append(Step(cell=str(index), work=amounts, step_s=exact(amounts)))
    return found


def exact(amounts: Mapping[str, float]) -> float:
    return sum(SECONDS[kind] * amount for kind, amount in amounts.items())


def test_seconds_of_each_kind_of_work_are_found() -> None:
    found = paces(steps())
    assert {kind: pace.seconds for kind, pace in found.items()} == pytest.approx(SECONDS)
    assert left_out(steps()) == pytest.approx([step.step_s for step in steps()])


def test_work_that_costs_nothing_has_a_pace_of_zero_and_none_is_negative() -> None:
    draw = random.Random(1)
    padded = [
        Step(cell=one.cell, work={**(one.work or {}), "float32_flops": draw.uniform(1, 3)}, step_s=one.step_s)
        for one in steps()
    ]
    found = paces(padded)
    assert found["float32_flops"].seconds == pytest.approx(0, abs=1e-5)
    assert min(pace.seconds for pace in found.values()) >= 0


def test_too_few_cells_say_nothing() -> None:
    few = len(SECONDS) + SPARE - 1
    assert paces(steps(few)) == {}
    assert paces([*steps(few), *steps(few)]) == {}  # the same cells again
    assert set(paces(steps(few + 1))) == set(SECONDS)
    assert left_out(steps(few + 1)) == [None] * (few + 1)
    assert paces([]) == {}
    assert left_out([Step(cell="a", work=None, step_s=1.0), Step(cell="b", work={"operators": 1.0}, step_s=None)]) == [
        None,
        None,
    ]


def test_the_estimate_of_a_cell_does_not_know_its_own_step() -> None:
    true = steps()
    odd = [*true[:-1], Step(cell=true[-1].cell, work=true[-1].work, step_s=100.0)]
    assert left_out(odd)[-1] == pytest.approx(true[-1].step_s)


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({"operators": 10.0}, 20.0),
        ({"operators": 40.0}, 80.0),
        ({"operators": 41.0}, None),
        ({"operators": 2.5}, 5.0),
        ({"operators": 2.4}, None),
        ({"operators": 10.0, "float16_flops": 1.0}, None),
        ({}, None),
        (None, None),
    ],
)
def test_an_estimate_stays_near_what_was_measured(amounts: Mapping[str, float] | None, expected: float | None) -> None:
    known = {"operators": Pace(seconds=2.0, least=5.0, most=20.0)}
    assert estimate_s(amounts, known) == expected
    assert estimate_s(amounts, {}) is None


HUNDRED = {"parameters": 100, "trained_parameters": 100, "gradient_parameters": 100, "sharded_parameters": 0}
PLAN = {"flops": {"bfloat16": (1.0, 2.0)}, "kept_bytes": (0.0, 0.0), "moved_bytes": (5.0, 7.0), "operators": 30}
forecast = partial(examples.forecast, **PLAN)


def test_ranks_share_the_cores_of_a_cpu_and_have_a_gpu_each() -> None:
    # bf16 weights of 2 P bytes and as many gradients, masters and moments of 4 P and 8 P; an all-reduce of 2 P
    moved, sent = 5 + 7 * 3 + 2 * (400 + 800 + 200), 200.0
    expected = {"operators": 30.0, "bfloat16_flops": 7.0, "moved_bytes": moved, "sent_bytes": sent}
    assert work(forecast(device="cuda"), 3) == expected
    lean = regime("ddp").model_copy(update=HUNDRED | {"trained_parameters": 10, "gradient_parameters": 10})
    trained = {"moved_bytes": 5 + 7 * 3 + 2 * (40 + 80 + 20), "sent_bytes": 20.0}
    assert work(forecast(device="cuda", regime=lean), 3) == expected | trained
    assert work(forecast(), 3) == {kind: n if kind == "operators" else 2 * n for kind, n in expected.items()}


def test_gloo_reduces_everything_where_ranks_keep_a_part() -> None:
    on_cpu, on_gpu = (work(forecast("fsdp", device=device), 1) for device in ("cpu", "cuda"))
    assert on_cpu is not None
    assert on_gpu is not None
    # Half of each of two gathers in bf16, and half of the gradients: over gloo, all of them.
    reduced = 4 if regime("fsdp").reduction_dtype == "float32" else 2
    assert on_gpu["sent_bytes"] == (2 * 2 * 100 + reduced * 100) / 2
    assert on_cpu["sent_bytes"] == 2 * (2 * 2 * 100 / 2 + reduced * 100)


def test_a_fit_that_does_not_converge_gives_no_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    assert paces(steps())
    monkeypatch.setattr("scipy.optimize.nnls", gives_up)
    assert paces(steps()) == {}
