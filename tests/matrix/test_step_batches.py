"""How many batches make a step: as an axis, from a global batch, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from toy_matrices import CPU, matrix_of, plans_of

from bench.errors import InputError
from bench.matrix import Matrix, expand, left_out


def test_micro_batches_are_an_axis_and_belong_to_the_cell() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "accumulate": [1, 4], "batch": [2]})
    assert [plan.cell.train.accumulate for plan in plans] == [1, 4]
    assert [plan.axes["accumulate"] for plan in plans] == [1, 4]
    assert [plan.cell.samples_per_step(2) for plan in plans] == [4, 16]
    assert len({plan.cell.id for plan in plans}) == 2


def test_accumulation_follows_from_a_global_batch_and_what_does_not_divide_is_left_out() -> None:
    axes = {"backend": ["single", "ddp"], "global_batch": [12, None], "batch": [2, 3, 4, "probe"]}
    matrix = matrix_of(matrix=axes)
    found = {(plan.cell.backend, plan.cell.train.global_batch): plan for plan in expand(matrix, CPU)}
    assert {key: plan.batches for key, plan in found.items()} == {
        ("single", 12): (2, 3, 4),
        ("ddp", 12): (2, 3),
        ("single", None): (2, 3, 4),
        ("ddp", None): (2, 3, 4),
    }
    assert all(plan.search for plan in found.values())
    assert [found["ddp", 12].cell.micro_batches(batch) for batch in (1, 2, 3, 6)] == [6, 3, 2, 1]
    assert found["ddp", 12].cell.samples_per_step(2) == 12
    words = "left out: batch 4, which does not divide the 6 samples of a rank (12 / 2 ranks)"
    assert left_out(matrix, CPU) == (words,)
    several = matrix_of(matrix={**axes, "batch": [3, 5, 7]})
    assert left_out(several, CPU) == (
        "left out: batch 5, 7, which do not divide the 12 samples of a rank (12 / 1 rank);"
        " batch 5, 7, which do not divide the 6 samples of a rank (12 / 2 ranks)",
    )
    assert left_out(matrix_of(matrix={**axes, "batch": [1]}), CPU) == ()
    (alone,) = plans_of(matrix={"backend": ["ddp"], "batch": [2]})
    assert alone.cell.id == found["ddp", None].cell.model_copy(update={"memory_limit_bytes": None}).id


def test_a_cell_of_which_no_batch_divides_is_left_out() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "global_batch": [8, 12], "batch": [3]})
    assert [(plan.cell.train.global_batch, plan.batches) for plan in plans] == [(12, (3,))]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"train": {"global_batch": 8, "accumulate": 1}}, "cannot be used with train.accumulate"),
        ({"matrix": {"global_batch": [8], "accumulate": [2]}}, "cannot be used with matrix.accumulate"),
        ({"matrix": {"global_batch": [7]}}, "7 cannot be shared evenly by the ranks"),
        ({"matrix": {"global_batch": [8], "batch": [3]}}, "batch 3, which does not divide the 4 .* nothing is left"),
        ({"matrix": {"global_batch": [8], "batch": ["probe"]}, "probe": {"granularity": 3}}, "gives each rank 4"),
    ],
)
def test_a_global_batch_that_cannot_be_is_one_message(fields: dict[str, Any], words: str) -> None:
    axes = {"backend": ["ddp"], "batch": [2], **fields.pop("matrix", {})}
    with pytest.raises(InputError, match=words):
        expand(matrix_of(matrix=axes, **fields), CPU)


def test_with_one_micro_batch_there_is_one_way_to_reduce() -> None:
    axes = {"backend": ["ddp"], "accumulate_sync": [None, "last", "each"], "batch": [2]}
    assert len(plans_of(matrix=axes)) == 1
    assert len(plans_of(matrix=axes, train={"accumulate": 2})) == 3


def test_accumulation_of_a_workload_stays_refused(load_text: Callable[..., Matrix]) -> None:
    with pytest.raises(InputError, match="gradient accumulation is refused"):
        load_text("matrix: {backend: ddp, batch: 1, gradient_accumulation_steps: 2}\n")
