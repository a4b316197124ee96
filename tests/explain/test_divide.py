"""Dividing steps of made traces, in which each part is as long as it is written."""

import dataclasses

import pytest
from made_traces import DEVICE, MS, a_trace, host, kernel, mark

from bench.explain import parts
from bench.explain.divide import divide, pacing
from bench.explain.intervals import total
from bench.explain.trace import Event, Trace
from bench.explain.waterfall import Explained, waterfall


def in_ms(trace: Trace) -> dict[str, float]:
    [division] = divide([trace])
    assert sum(total(spans) for spans in division.spans.values()) == total(division.windows)
    return {part.name: took / MS for part, took in division.parts.items()}


def test_each_instant_of_a_device_is_in_one_part() -> None:
    assert in_ms(a_trace(0, *DEVICE)) == {
        "waiting for data": 5,
        "copies to the device in loading": 7,
        "matrix products in forward": 10,
        "attention in forward": 10,
        "elementwise and norms in backward": 3,  # beside attention, 3 ms more
        "recomputation in backward": 5,
        "exposed all-gather in backward": 8,
        "copies to the host in backward": 5,
        "optimizer": 20,
        "host gaps in forward": 3,
        "host gaps in backward": 9,
        "host gaps in optimizer step": 15,
    }
    [division] = divide([a_trace(0, *DEVICE)])
    assert total(division.hidden) == 2 * MS


def test_a_copy_to_the_host_in_each_step_is_the_largest_bar() -> None:
    copied = (*DEVICE[:12], kernel("Memcpy DtoH (Device -> Pageable)", 110, 150, 59, kind="gpu_memcpy"), *DEVICE[13:])
    longer = [
        one._replace(end=160 * MS) if one.name in (parts.STEP, "bench:phase:optim_step") else one for one in copied
    ]
    before, after = (
        Explained(name=name, divisions=divide([a_trace(0, *events)]))
        for name, events in (("without", DEVICE), ("with", longer))
    )
    found = waterfall(before, after)
    assert found.bars[0].name == "copies to the host in backward"
    assert found.bars[0].difference_s == pytest.approx(0.035)
    assert sum(bar.difference_s for bar in found.bars) == pytest.approx(found.difference_s)
    assert found.sentence.startswith("with is 1.60× slower than without: 58 % is copies to the host in backward")


def ranks(*late: float, world_size: int | None = 2) -> list[Trace]:
    """Each rank reaches an all-reduce when it says, and it ends at 60 ms for all."""
    return [
        a_trace(
            rank,
            mark(parts.STEP, 0, 100),
            mark("bench:phase:bwd", 0, 100),
            kernel("gemm", 0, start, 0),
            kernel("ncclKernel_AllReduce_RING_LL_Sum_float", start, 60, 1, stream="9"),
            world_size=world_size,
        )
        for rank, start in enumerate(late)
    ]


def test_waiting_for_the_last_rank_is_told_from_transfer() -> None:
    first, last = divide(ranks(20, 50))
    assert first.parts[parts.Part(parts.WAITING, "all-reduce", "backward")] == 30 * MS
    for one in (first, last):
        assert one.parts[parts.Part(parts.EXPOSED, "all-reduce", "backward")] == 10 * MS
        assert one.called[0].transfer == 10 * MS
    assert pacing([first, last]).rank == 1


def test_clocks_that_are_apart_do_not_make_waiting() -> None:
    shifted = ranks(20, 50)
    moved = [
        one._replace(start=one.start + 7 * MS, end=one.end + 7 * MS, launched=(one.launched or 0) + 7 * MS)
        for one in shifted[1].device
    ]
    shifted[1] = dataclasses.replace(shifted[1], device=moved)
    first, last = divide(shifted)
    assert first.parts[parts.Part(parts.WAITING, "all-reduce", "backward")] == 30 * MS
    assert last.parts.get(parts.Part(parts.WAITING, "all-reduce", "backward")) is None


def test_missing_ranks_leave_waiting_unknown() -> None:
    [first, other] = divide(ranks(20, 50, world_size=3))
    assert first.called[0].transfer is other.called[0].transfer is None
    assert first.parts[parts.Part(parts.EXPOSED, "all-reduce", "backward")] == 40 * MS


def test_a_cpu_is_divided_by_operators_and_waits() -> None:
    assert in_ms(
        a_trace(
            0,
            mark(parts.STEP, 0, 50),
            mark(parts.STEP, 50, 100),
            mark("bench:phase:dataload_wait", 0, 5),
            mark("bench:phase:forward", 5, 40),
            host("aten::linear", 6, 20),
            host("aten::addmm", 7, 20),
            host("aten::native_layer_norm", 20, 24),
            host("aten::copy_", 10, 90, thread="2"),  # gloo's own thread
            mark("gloo:all_gather", 26, 38, thread="2"),
            mark(parts.WAIT, 30, 39),
            host("aten::_to_copy", 39, 40),
            mark("bench:phase:bwd", 40, 80),
            host("autograd::engine::evaluate_function: AddmmBackward0", 40, 80),
            host("aten::mm", 42, 50),
            mark(parts.RECOMPUTE, 50, 60),
            host("aten::mm", 51, 60),
            mark("gloo:all_reduce", 60, 75, thread="2"),
            host("aten::mm", 62, 64),
            mark("bench:phase:optim_step", 80, 100),
        )
    ) == pytest.approx(
        {
            "waiting for data": 2.5,
            "matrix products in forward": 7,
            "elementwise and norms in forward": 2,
            "exposed all-gather in forward": 4.5,
            "copies in forward": 0.5,
            "host gaps in forward": 3.5,
            "matrix products in backward": 5,
            "recomputation in backward": 5,
            "exposed all-reduce in backward": 6.5,  # which C++ waits for, without a mark
            "host gaps in backward": 3.5,
            "optimizer": 10,
        }
    )


def test_what_follows_the_optimizer_within_deepspeeds_backward_is_its_step() -> None:
    trace = a_trace(
        0,
        mark(parts.STEP, 0, 100),
        mark("bench:phase:forward", 0, 30),
        mark("bench:phase:bwd", 30, 100),
        host("aten::mm", 30, 50),
        mark("Optimizer.step#AdamW.step", 60, 70),
        mark(parts.WAIT, 80, 95),
        mark("gloo:all_gather", 81, 95, thread="2"),
    )
    found = in_ms(trace)
    assert found["exposed all-gather in optimizer step"] == 15
    assert found["optimizer"] == 25
    assert found["host gaps in backward"] == 10


def test_an_operator_within_another_counts_by_its_own_kind() -> None:
    took = in_ms(
        a_trace(
            0,
            mark(parts.STEP, 0, 50),
            mark(parts.STEP, 50, 100),
            mark("bench:phase:forward", 0, 40),
            host("aten::linear", 0, 40),
            host("aten::to", 0, 20),
            host("aten::_to_copy", 2, 20),
            host("aten::copy_", 4, 20),  # autocast's cast of the weight
            host("aten::addmm", 22, 40),
            mark("bench:phase:unscale_clip", 40, 60),
            host("aten::linalg_vector_norm", 40, 60),
            host("_c10d_functional::all_reduce", 42, 46),  # of a DTensor
            host("_c10d_functional::wait_tensor", 46, 56),
            mark("gloo:all_reduce", 44, 55, thread="2"),
        )
    )
    assert took["copies in forward"] == pytest.approx(9)
    assert took["matrix products in forward"] == pytest.approx(10)
    assert took["elementwise and norms in forward"] == pytest.approx(1)
    assert took["exposed all-reduce in clipping"] == pytest.approx(7)
    assert took["elementwise and norms in clipping"] == pytest.approx(3)


@pytest.mark.parametrize(
    ("name", "phase", "kind"),
    [
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>", "forward", parts.ELEMENTWISE),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float>>", "clipping", parts.ELEMENTWISE),
        ("void multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", parts.OTHER, parts.OPTIMIZER),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float>>", parts.OTHER, parts.ELEMENTWISE),
        ("triton_poi_fused_convert_element_type_3", "forward", parts.ELEMENTWISE),
        ("triton_poi_fused_convolution_relu_0", "forward", parts.ELEMENTWISE),
        ("convert_fp16_kernel", "forward", parts.ELEMENTWISE),
        ("cudnn_infer_ampere_scudnn_128x64_relu_conv_small_nn_v1", "forward", parts.MATRIX),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "forward", parts.MATRIX),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_phase_and_name_say(name: str, phase: str, kind: str) -> None:
    assert parts.kind_of_device(name, "kernel", phase, recomputed=False).kind == kind


def steps_of_others(*more: Event) -> Trace:
    """Three steps of 1 ms, which wait 0.5 ms for data and then compute 0.4 ms."""
    each = [
        (
            mark(f"ProfilerStep#{step}", step, step + 1),
            mark("enumerate(DataLoader)#_Iter.__next__", step, step + 0.5),
            kernel("gemm", step + 0.5, step + 0.9, launched=step + 0.5),
        )
        for step in range(3)
    ]
    return a_trace(0, *(one for step in each for one in step), *more)


@pytest.mark.parametrize(
    "more",
    [
        (),
        tuple(mark(f"ProfilerStep#{step}", step, step + 1, thread="2") for step in range(3)),
        tuple(mark(f"ProfilerStep#{step}", step + 0.1, step + 0.2) for step in range(3)),
    ],
    ids=["plain", "repeated by a thread", "nested"],
)
def test_the_gap_between_steps_of_others_belongs_to_them(more: tuple[Event, ...]) -> None:
    [division] = divide([steps_of_others(*more)])
    assert division.step == MS
    took = {part.name: time / MS for part, time in division.parts.items()}
    assert took["waiting for data"] == pytest.approx(0.5)


def test_kernels_without_their_launch_are_of_all_steps() -> None:
    whole = steps_of_others()
    unknown = dataclasses.replace(whole, device=[one._replace(launched=None) for one in whole.device])
    [division] = divide([unknown])
    assert division.steps == 3


def test_calls_of_different_groups_do_not_wait_for_each_other() -> None:
    def rank(number: int, group: str, start: float) -> Trace:
        calls = kernel("ncclKernel_AllGather", start, start + 1, launched=start)._replace(group=group)
        return a_trace(number, mark(parts.STEP, 0, 10), calls, world_size=4)

    divisions = divide([rank(0, "[0, 1]", 1), rank(1, "[0, 1]", 1), rank(2, "[2, 3]", 5), rank(3, "[2, 3]", 5)])
    assert not any(part.kind == parts.WAITING for division in divisions for part in division.parts)
    assert all(division.called[0].transfer == MS for division in divisions)
