"""What each backend adds to a program: two units that each run twice, and one parameter in no unit."""

from collections.abc import Callable

import pytest
from examples import cell

from bench.backends.forecast import MEMORY_OF_RANK, forecast, holdings, not_planned, upper
from bench.backends.registry import BACKENDS
from bench.records.cell import Train
from bench.records.forecast import Line
from bench.records.program import Event, Moment, Parameter, Program

ROOT, UNIT = 1000, 4000
ALL = ROOT + 2 * UNIT
RUNS: tuple[tuple[Event, int | None], ...] = (
    *((event, unit) for unit in (0, 1, 0, 1) for event in ("enter", "leave")),
    ("forward_end", None),
    *(("backward", unit) for unit in (1, 0, 1)),
    ("gradient", 2),
    ("backward", 0),
    ("gradient", 1),
    ("gradient", 0),
    ("end", None),
)


def program(device: str = "cuda") -> Program:
    return Program(
        device=device,
        batches=(2, 4, 8),
        parameters=tuple(
            Parameter(elements=elements, unit=unit, trained=True)
            for elements, unit in ((ROOT, None), (UNIT, 0), (UNIT, 1))
        ),
        weights_bytes=2,
        buffers_bytes=0,
        units=2,
        moments=tuple(
            Moment(event=event, index=index, peak_bytes=(200, 400, 800), live_bytes=(20, 40, 80))
            for event, index in RUNS
        ),
        input_bytes=10,
        flops={"bfloat16": (2000, 4000, 8000)},
        moved_bytes=(30, 50, 90),
        operators=7,
        seconds=0.0,
    )


def most(backend: str, part: str, ranks: int = 2, device: str = "cuda", **train: object) -> int:
    """The most that a rank holds of this part at any moment."""
    one = cell(backend, num_processes=1 if backend == "single" else ranks, train=Train.model_validate(train))
    return max(holding.parts.get(part, 0) for holding in holdings(one, program(device)))


def least(backend: str, part: str) -> int:
    one = cell(backend, num_processes=1 if backend == "single" else 2)
    return min(holding.parts.get(part, 0) for holding in holdings(one, program()))


@pytest.mark.parametrize(
    ("backend", "weights", "masters", "moments"),
    [
        ("single", 2, 4, 8),
        ("ddp", 2, 4, 8),
        ("fsdp", 2, 0, 4),
        ("fsdp_grad_op", 2, 0, 4),
        ("fsdp2", 2, 0, 4),
        ("zero1", 2, 2, 4),
        ("zero2", 2, 2, 4),
        ("zero3", 1, 2, 4),
    ],
)
def test_state_is_held_throughout(backend: str, weights: int, masters: int, moments: int) -> None:
    """Bytes a parameter on two ranks: arXiv:1910.02054, section 3.1."""
    held = {part: (least(backend, part), most(backend, part)) for part in ("weights", "masters", "moments")}
    assert held == {"weights": (weights * ALL,) * 2, "masters": (masters * ALL,) * 2, "moments": (moments * ALL,) * 2}


def test_without_an_optimizer_there_is_no_state() -> None:
    assert most("ddp", "moments", optimizer="none") == most("ddp", "masters", optimizer="none") == 0


def test_adam_on_bf16_weights_keeps_bf16_moments() -> None:
    assert most("ddp", "moments", master_weights=False) == 4 * ALL
    assert most("ddp", "masters", master_weights=False) == 0


def test_masters_have_gradients_of_their_own_while_they_step() -> None:
    assert most("ddp", "gradients") == (2 + 4) * ALL
    assert most("ddp", "buckets") == 2 * ALL
    assert most("single", "buckets") == 0


def test_only_the_plain_loop_of_adam_needs_room() -> None:
    assert most("ddp", "optimizer", device="cpu") == 3 * 4 * UNIT
    assert most("ddp", "optimizer") == 0
    assert most("ddp", "optimizer", foreach=True) == 4 * ALL


def test_fsdp_keeps_a_unit_from_its_first_to_its_last_use_in_backward() -> None:
    low = 2 * UNIT // 2  # the shard in bf16, while it is gathered
    assert most("fsdp", "gathered") == 2 * ALL + low
    forward = [one.parts.get("gathered", 0) for one in holdings(cell("fsdp"), program()) if one.when == "forward"]
    assert max(forward) == 2 * (ROOT + UNIT) + low  # one unit at a time
    assert least("fsdp", "gathered") == 0


def test_shard_grad_op_keeps_all_units_from_forward_on() -> None:
    forward = [
        one.parts.get("gathered", 0) for one in holdings(cell("fsdp_grad_op"), program()) if one.when == "forward"
    ]
    assert forward[-1] == 2 * ALL


def test_fsdp_holds_a_flat_gradient_of_each_unit() -> None:
    assert most("fsdp", "gradients") > 2 * UNIT * 2
    last = [one.parts.get("gradients", 0) for one in holdings(cell("fsdp"), program())][-1]
    assert last == 4 * ALL // 2  # fp32 shards


def test_fsdp2_reduces_in_fp32_and_ends_with_shards() -> None:
    gradients = [one.parts.get("gradients", 0) for one in holdings(cell("fsdp2"), program())]
    assert gradients[-1] == 4 * ALL // 2
    assert max(gradients) >= 2 * UNIT + 4 * UNIT


@pytest.mark.parametrize("reshards", [True, False])
def test_fsdp2_frees_units_in_backward_and_keeps_the_root_until_it_is_reduced_at_the_end(reshards: bool) -> None:
    held = [one.parts for one in holdings(cell("fsdp2", train=Train(reshard_after_forward=reshards)), program())]
    last_unit = max(held, key=lambda parts: parts.get("gradients", 0))  # its gradients, and the root's, are all there
    assert last_unit["gathered"] == 2 * ROOT


def test_a_rank_of_fsdp1_may_hold_all_of_a_parameter() -> None:
    one = program("cpu").model_copy(
        update={"parameters": tuple(Parameter(elements=size, unit=0, trained=True) for size in (600, 300, 300))}
        | {"moments": tuple(m for m in program().moments if m.index in (None, 0))}
    )
    found = max(holding.parts.get("optimizer", 0) for holding in holdings(cell("fsdp"), one))
    assert found == 4 * 2 * 600  # the first rank has the first parameter and nothing else
    sharded = max(holding.parts.get("optimizer", 0) for holding in holdings(cell("fsdp2"), one))
    assert sharded == 4 * 2 * 300


def test_zero_fills_a_bucket_no_larger_than_the_model() -> None:
    aligned = 9 * 1024
    assert most("zero1", "buckets") == most("zero2", "buckets") == 2 * aligned + 2 * ALL  # and its flat copy
    assert most("zero2", "buckets", zero_overlap_comm=True) == 4 * aligned + 2 * ALL
    assert most("zero1", "gradients") >= 2 * ALL
    assert most("zero2", "gradients") < 2 * ALL + 4 * ALL


def adapted(*frozen: int) -> Program:
    """Unit 1 has adapters, of a thousandth of its size; of the parameters with these indices, none is trained."""
    sizes = ((ROOT, None), (UNIT, 0), (UNIT - UNIT // 1000, 1), (UNIT // 1000, 1))
    parameters = tuple(
        Parameter(elements=elements, unit=unit, trained=index not in frozen)
        for index, (elements, unit) in enumerate(sizes)
    )
    gradients = [index for index in (3, 2, 1, 0) if index not in frozen]
    moments = [moment for moment in program().moments if moment.event not in ("gradient", "end")]
    end = moments[-1].model_copy(update={"event": "end", "index": None})
    made = [end.model_copy(update={"event": "gradient", "index": index}) for index in gradients]
    return program().model_copy(update={"parameters": parameters, "moments": (*moments, *made, end)})


def test_frozen_weights_are_held_without_state() -> None:
    lean, trained = adapted(0, 1, 2), UNIT // 1000
    held = {backend: [it.parts for it in holdings(cell(backend), lean)] for backend in ("ddp", "fsdp2", "zero2")}
    for backend, weights, masters in (("ddp", 2 * ALL, 4), ("fsdp2", 4 * ALL // 2, 0), ("zero2", 2 * ALL, 4 // 2)):
        shares = 1 if backend == "ddp" else 2
        assert {parts["weights"] for parts in held[backend]} == {weights}
        assert {parts.get("masters", 0) for parts in held[backend]} == {masters * trained}
        assert {parts["moments"] for parts in held[backend]} == {8 * trained // shares}
    assert max(parts.get("buckets", 0) for parts in held["zero2"]) == 2 * 1024 + 2 * trained  # made for what is trained


def test_fsdp1_makes_gradients_of_what_is_frozen_in_a_flat_parameter_with_a_trained_one() -> None:
    """Its views require gradients together, so it runs another step than the others, which is traced by itself."""
    lean = adapted(0, 1, 2)
    flat = adapted(0, 1).model_copy(update={"parameters": lean.parameters})  # unit 1 alone gets gradients
    both = lean.model_copy(update={"flat": flat})
    held = [it.parts for it in holdings(cell("fsdp"), flat)]
    assert held[-1]["gradients"] == 4 * UNIT // 2
    assert held[-1]["moments"] == 8 * UNIT // 1000  # the second half of the unit has all adapters
    regime = forecast(cell("fsdp"), both).regime
    assert (regime.trained_parameters, regime.gradient_parameters) == (UNIT // 1000, UNIT)
    assert forecast(cell("fsdp"), both).lines == forecast(cell("fsdp"), flat).lines
    assert forecast(cell("fsdp2"), both).lines == forecast(cell("fsdp2"), lean).lines


def test_zero3_fetches_large_weights_into_one_buffer_and_frees_units_in_backward() -> None:
    large = tuple(Parameter(elements=elements, unit=unit, trained=True) for elements, unit in ((10**6, 0), (10**6, 1)))
    moments = tuple(moment for moment in program().moments if moment.event != "gradient")
    held = list(holdings(cell("zero3"), program().model_copy(update={"parameters": large, "moments": moments})))
    gathered = {
        when: [it.parts.get("gathered", 0) for it in held if it.when == when] for when in ("forward", "backward")
    }
    assert max(gathered["forward"]) == 2 * (2 + 2) * 10**6  # with the buffer
    assert max(gathered["backward"]) == 2 * 2 * 10**6
    assert 2 * 10**6 in gathered["backward"]
    group = program().units  # the first of FSDP2's other groups: no unit of ZeRO-3
    around = (moments[0].model_copy(update={"event": event, "index": group}) for event in ("enter", "leave"))
    with_group = program().model_copy(update={"parameters": large, "moments": (*around, *moments)})
    assert max(it.parts["gathered"] for it in holdings(cell("zero3"), with_group) if it.when == "backward") == 4 * 10**6
    assert most("zero3", "gathered") == 2 * ALL  # small weights are there before


def test_only_gloo_copies_what_it_sends() -> None:
    for backend in ("fsdp", "fsdp2", "zero2"):
        assert most(backend, "transport") == 0
        assert most(backend, "transport", device="cpu") > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forecast_is_the_highest_holding_at_every_batch(backend: str) -> None:
    one = cell(backend, num_processes=1 if backend == "single" else 2)
    found, held = forecast(one, program()), list(holdings(one, program()))
    for index, batch in enumerate((2, 4, 8)):
        highest = max(sum(it.parts.values()) + it.activation_bytes[index] for it in held)
        assert found.allocated_bytes(batch) == pytest.approx(highest + 10 * batch)
    assert found.apart == pytest.approx(0.0)
    assert found.unit_parameters == {2: 2 * UNIT}
    assert found.flops == {"bfloat16": (0.0, 1000.0)}


def test_the_largest_batch_is_the_last_that_fits() -> None:
    found = forecast(cell("ddp"), program())
    for capacity in (found.needed_bytes(7), found.needed_bytes(7) + 1, found.needed_bytes(8) - 1):
        assert found.largest(capacity) == 7
    assert found.largest(found.needed_bytes(1) - 1) == 0
    assert found.largest(found.needed_bytes(50), off=0.1) < 50 < found.largest(found.needed_bytes(50), off=-0.1)


def test_lines_that_are_never_the_highest_are_left_out() -> None:
    def line(at_zero: int, each: float) -> Line:
        return Line(when="forward", parts={"weights": at_zero}, fixed_bytes=0.0, sample_bytes=each)

    high, steep, never, low = line(100, 0.0), line(0, 10.0), line(40, 5.0), line(10, 0.0)
    assert upper([steep, low, never, high]) == [high, steep]
    assert upper([line(100, 10.0), line(10, 1.0)]) == [line(100, 10.0)]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(
    ("backend", "sync", "gradients", "gathered"),
    [
        ("single", None, lambda _: 2, 0),
        ("ddp", None, lambda _: 2, 0),
        ("fsdp", None, lambda _: 2, 0),
        ("fsdp", "each", lambda ranks: 4 / ranks, 0),
        ("fsdp_grad_op", None, lambda _: 2, 2),
        ("fsdp_grad_op", "each", lambda ranks: 4 / ranks, 0),
        ("fsdp2", None, lambda _: 4, 0),
        ("fsdp2", "each", lambda ranks: 4 / ranks, 0),
        ("zero1", None, lambda _: 2, 0),
        ("zero2", None, lambda ranks: 2 / ranks, 0),
        ("zero3", None, lambda ranks: 2 / ranks, 0),
    ],
)
def test_what_is_held_from_one_micro_batch_to_the_next(
    backend: str, sync: str | None, gradients: Callable[[int], float], gathered: int, ranks: int
) -> None:
    """Bytes a parameter in bf16 when the second forward begins; at the end of the step, as with one micro-batch."""
    one = cell(
        backend,
        num_processes=1 if backend == "single" else ranks,
        train={"accumulate": 4, "accumulate_sync": sync},
    )
    found = list(holdings(one, program()))
    second = next(at for at in range(1, len(found)) if (found[at - 1].when, found[at].when) == ("backward", "forward"))
    parts = found[second].parts
    assert (parts["gradients"], parts.get("gathered", 0)) == (gradients(ranks) * ALL, gathered * ALL)
    alone = list(holdings(one.model_copy(update={"train": Train()}), program()))[-1]
    last = found[-1]
    assert {name: size for name, size in last.parts.items() if size} == {n: s for n, s in alone.parts.items() if s}


def test_a_batch_that_makes_the_global_batch_alone_holds_less() -> None:
    one = cell("fsdp2", train={"global_batch": 64}, num_processes=8)
    found, alone = forecast(one, program()), forecast(cell("fsdp2", num_processes=8), program())
    several = forecast(cell("fsdp2", train={"accumulate": 2}, num_processes=8), program())
    assert [found.allocated_bytes(batch) for batch in (4, 8)] == [several.allocated_bytes(4), alone.allocated_bytes(8)]
    assert several.allocated_bytes(8) > alone.allocated_bytes(8)
    assert found.largest(alone.needed_bytes(8)) == 8
    assert found.largest(alone.needed_bytes(8) - 1) == several.largest(alone.needed_bytes(8) - 1) < 8


@pytest.mark.parametrize(
    ("whole", "room", "largest"), [(32, 4744, 16), (32, 15, 8), (24, 11, 6), (32, 0, 0), (2, 9, 1)]
)
def test_the_largest_batch_divides_the_global_batch(whole: int, room: int, largest: int) -> None:
    found = forecast(cell("ddp", train={"global_batch": whole}), program())
    assert found.largest(forecast(cell("ddp", train={"accumulate": 2}), program()).needed_bytes(room)) == largest


def test_what_is_not_planned_says_why() -> None:
    for train, word in (
        ({"optimizer": "muon"}, "muon"),
        ({"compile": "unit"}, "compiler"),
        ({"offload": "params"}, "offloaded"),
        ({"dp_replicate_size": 2}, "mesh"),
    ):
        assert word in (not_planned(cell("fsdp2", train=Train.model_validate(train))) or "")
    assert "accelerate" in (not_planned(cell("mine", accelerate={"distributed_type": "MULTI_GPU"})) or "")
    assert not_planned(cell("zero3")) is None
    assert {backend.sharding for backend in BACKENDS.values()} <= set(MEMORY_OF_RANK)
