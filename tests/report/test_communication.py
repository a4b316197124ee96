"""What a step sends: formulas by hand, records beside them. tests/e2e/test_communication.py has real ranks."""

from typing import Any

import pytest
from examples import cell, ok, regime, result

from bench.records.cell import Regime, Train
from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import Traffic
from bench.report.communication import communication
from bench.report.formulas import StepFormulas, gathered, sent_bytes
from bench.report.summary import summarize
from bench.report.tables.theory import communication_table

UNITS = {1: 200, 2: 700}
"""Of 1000 parameters, 100 are in no unit."""


@pytest.mark.parametrize(
    ("sharding", "parameters"),
    [
        ("FULL_SHARD", 100 + 2 * 200 + 3 * 700),  # the root once; each forward and one backward
        ("SHARD_GRAD_OP", 1000),
        ("fully_shard", 100 + 2 * 200 + 4 * 700),  # the root once; each forward and each backward
        ("zero3", 1000),  # all of it is needed again soon
    ],
)
def test_what_a_step_gathers(sharding: str, parameters: int) -> None:
    assert gathered(sharding, 1000, UNITS) == parameters


def test_a_unit_that_never_runs_is_not_gathered() -> None:
    assert gathered("FULL_SHARD", 1000, {0: 200, 1: 700}) == 100 + 2 * 700
    assert gathered("SHARD_GRAD_OP", 1000, {0: 200, 1: 700}) == 800


def test_zero3_frees_what_it_needs_again_only_after_the_reuse_distance() -> None:
    million = {runs: number * 10**6 for runs, number in UNITS.items()}
    assert gathered("zero3", 10**9, million) == 2 * (100 + 200 + 1400) * 10**6


@pytest.mark.parametrize(
    ("sharding", "parameters"),
    [
        ("FULL_SHARD", 100 + 200 + 2 * 700 + 300 + 100),  # each once more that backward passes
        ("fully_shard", 100 + 200 + 2 * 700 + 300 + 2 * 100),
        ("SHARD_GRAD_OP", 1000),
        ("zero3", 1000),
    ],
)
def test_backward_ends_before_a_frozen_tower(sharding: str, parameters: int) -> None:
    assert gathered(sharding, 1000, UNITS, again={0: 500, 1: 300, 2: 100}) == parameters


def world(sharding: str, ranks: int = 8, **changes: Any) -> Regime:
    fields = {"sharding": sharding, "world_size": ranks}
    return regime().model_copy(update=fields | changes)


def step(regime: Regime, units: dict[int, int] | None) -> StepFormulas:
    return StepFormulas(cell(), 1, regime, units)


@pytest.mark.parametrize(
    ("sharding", "changes", "payload"),
    [
        ("none", {}, {"all_reduce": 2000}),
        ("zero1", {}, {"all_reduce": 2000, "all_gather": 2000}),
        ("zero2", {}, {"all_reduce": 2000, "all_gather": 2000}),
        ("FULL_SHARD", {}, {"reduce_scatter": 2000, "all_gather": 2 * 2600}),
        ("fully_shard", {"reduction_dtype": "float32"}, {"reduce_scatter": 4000, "all_gather": 2 * 3300}),
        ("fully_shard", {"reshard_after_forward": False}, {"reduce_scatter": 2000, "all_gather": 2 * 1000}),
        ("fully_shard", {"reshard_after_forward": 4}, None),
        (
            "fully_shard",
            {"mesh": {"dp_replicate": 2, "dp_shard": 4}},
            {"reduce_scatter": 2000, "all_gather": 2 * 3300, "all_reduce": 500},
        ),
    ],
)
def test_payload(sharding: str, changes: dict[str, Any], payload: dict[str, float] | None) -> None:
    assert step(world(sharding, **changes), UNITS).payload() == payload


@pytest.mark.parametrize(
    ("sharding", "changes", "payload"),
    [
        ("none", {}, {"all_reduce": 80}),
        ("zero1", {}, {"all_reduce": 80, "all_gather": 80}),
        ("FULL_SHARD", {"gradient_parameters": 700}, {"reduce_scatter": 1400, "all_gather": 2 * 2600}),
        ("fully_shard", {}, {"reduce_scatter": 80, "all_gather": 2 * 3300}),
        ("zero3", {}, {"reduce_scatter": 80, "all_gather": 2 * 1000}),
        ("fully_shard", {"frozen_dtype": "uint8"}, None),
    ],
)
def test_gradients_are_those_of_what_is_trained(
    sharding: str, changes: dict[str, Any], payload: dict[str, float] | None
) -> None:
    """40 of 1000 parameters, in bf16. Sharded weights are gathered whether they are trained or not."""
    regime = world(sharding, trained_parameters=40, **{"gradient_parameters": 40} | changes)
    assert step(regime, UNITS).payload() == payload


def test_zero2_sends_three_volumes() -> None:
    payload = step(world("zero2"), None).payload() or {}
    assert sum(sent_bytes(name, size, 8) or 0 for name, size in payload.items()) == 3 * 2000 * 7 / 8


def test_on_a_hybrid_mesh_each_operation_has_its_own_ranks() -> None:
    regime = world("fully_shard", mesh={"dp_replicate": 2, "dp_shard": 4})
    parts = {"reduce_scatter": 2000 * 3 / 4, "all_gather": 6600 * 3 / 4, "all_reduce": 2 * 500 / 2}
    assert step(regime, UNITS).sent(gloo=False) == parts
    whole = 2 * 2000 * 3 / 4 + 2 * 500 / 2  # gloo reduces to all of the four
    assert step(regime, UNITS).sent(gloo=True) == {"all_reduce": whole, "all_gather": 6600 * 3 / 4}


def test_without_the_units_runs_a_sharded_model_has_no_formula() -> None:
    assert step(world("FULL_SHARD"), None).payload() is None


def test_one_rank_sends_nothing() -> None:
    assert step(world("none", 1, reduction_dtype=None), {}).payload() == {}


@pytest.mark.parametrize(
    ("operation", "each"),
    [("all_reduce", 1500), ("all_gather", 750), ("reduce_scatter", 750), ("broadcast", 750), ("gather", None)],
)
def test_rings_of_four(operation: str, each: float | None) -> None:
    assert sent_bytes(operation, 1000, 4) == each


def traffic(operation: str, payload: int, library: str = "nccl", calls: int = 1) -> Traffic:
    return Traffic(
        library=library, operation=operation, dtype="BFloat16", group_size=2, calls=calls, payload_bytes=payload
    )


def recorded(backend: str, *parts: Traffic, units: dict[int, int] | None = None) -> Ok:
    changes = {"traffic": parts, "unit_parameters": units}
    return Ok(ranks=tuple(one.model_copy(update=changes) for one in ok(backend=backend).ranks))


def test_the_record_stands_beside_the_formula() -> None:
    outcome = recorded(
        "fsdp",
        traffic("reduce_scatter", 2000, calls=3),
        traffic("all_gather", 5720, calls=9),
        traffic("all_reduce", 4),
        units=UNITS,
    )
    table = communication_table(summarize([result(outcome, backend="fsdp")]))
    assert table.rows == (
        ("fsdp, batch 2", "all-gather", "9", "2.79 KiB", "2.54 KiB", "1.100"),
        ("fsdp, batch 2", "reduce-scatter", "3", "1000 B", "1000 B", "1.000"),
    )


def test_gloo_reduces_to_all_and_the_formula_follows() -> None:
    outcome = recorded("fsdp", traffic("all_reduce", 2000, "gloo"), traffic("all_gather", 5200, "gloo"), units=UNITS)
    (cell,) = summarize([result(outcome, backend="fsdp")]).cells
    assert [(one.operation, one.ratio) for one in communication(cell)] == [("all_gather", 1), ("all_reduce", 1)]


def test_what_muon_gathers_beside_the_weights_is_in_no_formula() -> None:
    outcome = recorded("fsdp", traffic("reduce_scatter", 2000), traffic("all_gather", 9000), units=UNITS)
    (cell,) = summarize([result(outcome, backend="fsdp", train=Train(optimizer="muon"))]).cells
    assert {one.operation: one.ratio for one in communication(cell)} == {"all_gather": None, "reduce_scatter": 1}


def test_an_operation_that_no_formula_has_is_shown_if_it_counts() -> None:
    outcome = recorded("ddp", traffic("all_reduce", 2000), traffic("all_to_all", 500), traffic("broadcast", 8))
    table = communication_table(summarize([result(outcome)]))
    assert table.rows == (
        ("ddp, batch 2", "all-reduce", "1", "1.95 KiB", "1.95 KiB", "1.000"),
        ("ddp, batch 2", "all-to-all", "1", "250 B", "n/a", "n/a"),
    )


def test_results_of_before_show_the_formula_alone() -> None:
    table = communication_table(summarize([result(ok())]))
    assert table.rows == (("ddp, batch 2", "all-reduce", "n/a", "n/a", "1.95 KiB", "n/a"),)
    assert communication_table(summarize([result(ok(backend="fsdp"), backend="fsdp")])).rows == ()


def test_the_best_recorded_batch_is_described() -> None:
    """With a global batch, each accumulates another number of times."""

    def at(batch: int, step_s: float, calls: int | None) -> Result:
        parts = () if calls is None else (traffic("all_reduce", 2000 * calls, calls=calls),)
        ranks = ok(*((step_s,) * 3,) * 2, backend="zero2").ranks
        changes = {"traffic": None if calls is None else parts}
        outcome = Ok(ranks=tuple(one.model_copy(update=changes) for one in ranks))
        return result(outcome, backend="zero2", batch=batch, train={"global_batch": 32})

    table = communication_table(summarize([at(4, 0.4, 4), at(8, 0.2, 2), at(16, 0.1, 1)]))
    assert [row for row in table.rows if row[1] == "all-reduce"] == [
        ("zero2, micro-batch 16, accumulate 1", "all-reduce", "1", "1.95 KiB", "1.95 KiB", "1.000")
    ]
    table = communication_table(summarize([at(4, 0.4, 4), at(8, 0.2, 2), at(16, 0.1, None)]))
    assert {row[0] for row in table.rows} == {"zero2, micro-batch 8, accumulate 2"}


def test_an_upper_bound_says_so() -> None:
    outcome = recorded("zero2", traffic("all_gather", 10**9), units={1: 10**9})
    changes = {"sharding": "zero3", "parameters": 10**9, "sharded_parameters": 10**9}
    ranks = tuple(one.model_copy(update={"regime": one.regime.model_copy(update=changes)}) for one in outcome.ranks)
    table = communication_table(summarize([result(Ok(ranks=ranks))]))
    assert table.rows[0][4].startswith("at most ")
