"""Combinations of axes, include and exclude: GitHub's own examples."""

import pytest
from toy_matrices import plans_of

from bench.errors import InputError

# GitHub's examples, "Running variations of jobs in a workflow", in our words: os is num_cams, version is attention, ...


def test_axes_make_every_combination_the_first_axis_slowest() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "num_cams": [1, 2, 3], "attention": ["eager", "sdpa"], "batch": [1]})
    assert [(p.axes["num_cams"], p.axes["attention"]) for p in plans] == [
        (1, "eager"), (1, "sdpa"), (2, "eager"), (2, "sdpa"), (3, "eager"), (3, "sdpa"),
    ]  # fmt: skip


def test_github_fruit_and_animal_example() -> None:
    """fruit: [apple, pear] is num_cams: [1, 2]; animal: [cat, dog] is attention: [eager, sdpa]."""
    plans = plans_of(
        matrix={"num_cams": [1, 2], "attention": ["eager", "sdpa"]},
        defaults={"backend": "ddp", "batch": 1},
        include=[
            {"width": 10},  # color: green, to all
            {"width": 20, "attention": "eager"},  # color: pink, overwrites what an include gave
            {"num_cams": 1, "scale": 3.0},  # shape: circle
            {"num_cams": 4},  # fruit: banana, a new combination
            {"num_cams": 4, "attention": "eager"},  # banana and cat: new as well, does not extend the banana above
        ],
    )
    seen = [tuple(p.cell.options[k] for k in ("num_cams", "attention", "width", "scale")) for p in plans]
    assert seen == [
        (1, "eager", 20, 3.0), (1, "sdpa", 10, 3.0), (2, "eager", 20, 1.0), (2, "sdpa", 10, 1.0),
        (4, "sdpa", 8, 1.0), (4, "eager", 8, 1.0),
    ]  # fmt: skip


def test_github_include_expands_a_combination() -> None:
    plans = plans_of(
        matrix={"backend": ["ddp", "fsdp"], "num_cams": [1, 2], "batch": [1]},
        include=[{"backend": "ddp", "num_cams": 2, "width": 6}],
    )
    assert [p.cell.options["width"] for p in plans] == [8, 6, 8, 8]


def test_github_include_alone_makes_a_matrix() -> None:
    plans = plans_of(include=[{"backend": "ddp", "batch": 1}, {"backend": "fsdp", "batch": 2}])
    assert [(p.cell.backend, p.batches) for p in plans] == [("ddp", (1,)), ("fsdp", (2,))]


def test_github_exclude_is_a_partial_match() -> None:
    plans = plans_of(
        matrix={"backend": ["ddp", "fsdp"], "num_cams": [1, 2], "attention": ["eager", "sdpa"], "batch": [1]},
        exclude=[{"backend": "ddp", "num_cams": 2, "attention": "eager"}, {"backend": "fsdp", "num_cams": 1}],
    )
    assert [(p.cell.backend, p.axes["num_cams"], p.axes["attention"]) for p in plans] == [
        ("ddp", 1, "eager"), ("ddp", 1, "sdpa"), ("ddp", 2, "sdpa"), ("fsdp", 2, "eager"), ("fsdp", 2, "sdpa"),
    ]  # fmt: skip


def test_include_comes_after_exclude() -> None:
    plans = plans_of(
        matrix={"backend": ["ddp", "fsdp"], "batch": [1]},
        exclude=[{"backend": "fsdp"}],
        include=[{"backend": "fsdp", "grad_ckpt": True}],
    )
    assert [(p.cell.backend, p.cell.options["grad_ckpt"]) for p in plans] == [("ddp", False), ("fsdp", True)]


def test_exclude_tells_true_from_one() -> None:
    with pytest.raises(InputError, match="num_cams is never true"):
        plans_of(matrix={"backend": ["ddp"], "num_cams": [1, 2], "batch": [1]}, exclude=[{"num_cams": True}])


def test_an_added_combination_is_measured_at_every_batch() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "batch": [1, 2]}, include=[{"backend": "zero2"}])
    assert [plan.batches for plan in plans] == [(1, 2), (1, 2)]
