"""Traced programs, held against the same step with real tensors."""

import gc
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from examples import cell as example
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from bench import workloads
from bench.errors import InputError
from bench.records.cell import Cell, Measure, Train
from bench.records.program import Program
from bench.runner.program import Live, trace

SDPA = {"attention": "sdpa", "grad_ckpt": False}


def cell_of(**options: object) -> Cell:
    kind = workloads.load("pi07")
    values = kind.Config(preset="tiny", n_layers=2, vision_layers=2, num_cams=1, **options).model_dump(mode="json")
    return Cell(
        backend="single",
        workload="pi07",
        options=values,
        num_processes=1,
        mixed_precision="bf16",
        measure=Measure(),
        train=Train(weights="bf16"),
    )


def peak(program: Program, index: int = 0) -> int:
    return max(moment.peak_bytes[index] for moment in program.moments)


def autocast(cell: Cell) -> Cell:
    return cell.model_copy(update={"train": Train(weights="fp32")})


def real_peak(cell: Cell, batch: int) -> int:
    """The same accounting of a step that really computes."""
    low = cell.train.weights == "bf16"
    kind = workloads.load(cell.workload)
    task = kind.create(kind.Config.model_validate(cell.options))
    model = task.build().to(torch.bfloat16 if low else torch.float32).train()
    samples = task.dataset(1)
    inputs = default_collate([samples[index] for index in range(batch)])
    live = Live("cpu", [*model.parameters(), *model.buffers(), *tree_leaves(inputs)])
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        for parameter in model.parameters()
    ]
    gc.collect()
    with live:
        with torch.autocast("cpu", torch.bfloat16, enabled=not low):
            loss = model(inputs)["loss"]
        torch.autograd.backward(loss)
    assert len(hooks) == len(list(model.parameters()))
    return live.peak


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("grad_ckpt", [False, True])
def test_on_meta_a_step_keeps_what_it_keeps_with_numbers(attention: str, grad_ckpt: bool) -> None:
    cell = cell_of(attention=attention, grad_ckpt=grad_ckpt)
    assert peak(trace(cell, "cpu", (4, 8))) == pytest.approx(real_peak(cell, 4), rel=0.005)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("grad_ckpt", [False, True])
def test_under_autocast_the_copies_of_weights_count(attention: str, grad_ckpt: bool) -> None:
    cell = autocast(cell_of(attention=attention, grad_ckpt=grad_ckpt))
    program = trace(cell, "cpu", (4, 8))
    assert program.weights_bytes == 4
    assert peak(program) == pytest.approx(real_peak(cell, 4), rel=0.01)
    assert max(program.flops, key=lambda name: program.flops[name]) == "bfloat16"


def test_memory_is_a_straight_line_over_the_batch() -> None:
    program = trace(cell_of(**SDPA), "cpu", (2, 4, 6))
    for moment in program.moments:
        low, high = (later - earlier for earlier, later in pairwise(moment.peak_bytes))
        assert high == pytest.approx(low, rel=0.01, abs=64 * 200)  # every tensor is rounded


def test_units_gradients_and_both_halves_of_the_step_are_marked() -> None:
    program = trace(cell_of(**SDPA), "cpu", (2, 4))
    norm = program.units  # the last norm, of which FSDP2 makes a group
    assert program.kept == (norm,)
    events = [moment.event for moment in program.moments if moment.index != norm or moment.event == "gradient"]
    trained = sum(one.trained for one in program.parameters)
    assert (events.count("gradient"), events.count("forward_end"), events[-1]) == (trained, 1, "end")
    # A patch embedding and two vision layers run once; two interleaved layers run in both passes.
    assert (program.units, events.count("enter"), events.count("leave")) == (5, 7, 7)
    assert set(program.flops) == {"bfloat16"}
    assert program.input_bytes > 3 * 2 * 64 * 64


def test_checkpointing_repeats_units_in_backward_and_keeps_less() -> None:
    plain, again = (trace(cell_of(attention="sdpa", grad_ckpt=on), "cpu", (4, 8)) for on in (False, True))
    assert peak(again) < peak(plain) / 2
    assert sum(moment.event == "enter" for moment in again.moments) == 14  # again all but patch embedding and last norm
    assert again.flops["bfloat16"][0] > plain.flops["bfloat16"][0]


@pytest.mark.parametrize("held", [Cell.model_copy, autocast], ids=["bf16", "fp32"])
def test_a_gpu_keeps_no_scores_with_fused_attention(held: Callable[[Cell], Cell]) -> None:
    sdpa, eager = (held(cell_of(attention=name, grad_ckpt=False)) for name in ("sdpa", "eager"))
    fused, whole = trace(sdpa, "cuda", (4, 8)), trace(eager, "cuda", (4, 8))
    assert peak(fused) < peak(whole)
    assert peak(trace(eager, "cpu", (4, 8))) > peak(whole)  # there, eager attention computes its scores in fp32


def test_a_model_that_needs_numbers_says_so() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        trace(cell_of(branch_sync="none", **SDPA), "cpu", (2, 4))


def test_a_sparse_gradient_has_no_size_before_it_is_computed() -> None:
    sparse = example(workload="unusual:unusual", options={"kind": "sparse"})
    with pytest.raises(InputError, match="the embedding 0 has sparse=True, and the size of its gradient depends on"):
        trace(sparse, "cpu", (2, 4))


def test_examples_can_be_traced() -> None:
    assert trace(example(), "cpu", (1, 2)).batches == (1, 2)


def test_operators_and_the_bytes_that_they_move_are_counted() -> None:
    one, other = torch.ones(4, 8), torch.ones(8, 2)
    live = Live("cpu", [one, other])
    with live:
        (one @ other).view(8)  # a view moves nothing
    assert (live.operators, live.moved) == (1, 4 * (32 + 16 + 8))


def test_work_grows_with_the_batch_and_with_what_is_computed_again() -> None:
    plain, again = (trace(cell_of(attention="sdpa", grad_ckpt=on), "cpu", (2, 4, 6)) for on in (False, True))
    low, high = (later - earlier for earlier, later in pairwise(plain.moved_bytes))
    assert high == pytest.approx(low, rel=0.001)
    assert plain.operators < again.operators
    assert plain.moved_bytes[0] < again.moved_bytes[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_experts_have_the_shapes_of_a_device(dtype: torch.dtype) -> None:
    """fp32 under autocast: torch's kernel for the meta device takes bf16 alone."""

    def step(device: str) -> list[torch.Size]:
        x = torch.randn(6, 16, dtype=dtype, device=device, requires_grad=True)
        weights = torch.randn(2, 16, 32, dtype=dtype, device=device, requires_grad=True)
        ends = torch.tensor([2, 6], dtype=torch.int32, device=device)
        out = nn.functional.grouped_mm(x, weights, offs=ends)
        out.square().sum().backward()
        return [out.shape, *(one.grad.shape for one in (x, weights) if one.grad is not None)]

    with Live("cpu", []):
        on_meta = step("meta")
    assert on_meta == step("cpu")
