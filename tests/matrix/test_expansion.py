"""Expansion: GitHub's own examples, what the fields mean, and laws that hold for any matrix."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_matrices import CPU, GPUS, matrix_of, plans_of, points

from bench.errors import InputError
from bench.matrix import Matrix, expand
from bench.matrix.select import narrow
from bench.records.cell import Cell
from bench.records.machine import Hardware
from bench.records.plan import CellPlan

SLOW_IN_BF16 = CPU.model_copy(update={"bf16": False})

# What the fields mean


def test_a_value_comes_from_preset_workload_defaults_axis_include_in_rising_order() -> None:
    given: dict[str, Any] = {"matrix": {"backend": ["ddp"], "batch": [1]}, "workload": {"preset": "large"}}
    widths = []
    for update in (
        {},
        {"workload": {"preset": "large", "width": 100}},
        {"defaults": {"width": 101}},
        {"matrix": {"backend": ["ddp"], "batch": [1], "num_cams": [1], "width": [102]}},
        {"matrix": {"backend": ["ddp"], "batch": [1], "num_cams": [1]}, "include": [{"num_cams": 1, "width": 103}]},
    ):
        given |= update
        widths.append(
            plans_of(**{k: dict(v) if k == "workload" else v for k, v in given.items()})[0].cell.options["width"]
        )
    assert widths == [512, 100, 101, 102, 103]


def test_preset_may_be_an_axis() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "preset": ["tiny", "large"], "batch": [1]})
    assert [(p.axes["preset"], p.cell.options["width"]) for p in plans] == [("tiny", 8), ("large", 512)]


def test_train_fields_may_be_axes() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "fused": [None, True], "optimizer": ["adamw"], "batch": [1]})
    assert [p.cell.train.fused for p in plans] == [None, True]


def test_weights_make_no_two_cells_that_do_the_same() -> None:
    """FSDP and ZeRO hold weights in their own way, and in fp32 there is nothing to choose."""
    plans = plans_of(matrix={"backend": ["ddp", "fsdp2"], "weights": ["fp32", "bf16"], "batch": [1]})
    assert [(p.cell.backend, p.axes.get("weights")) for p in plans] == [
        ("ddp", "fp32"),
        ("ddp", "bf16"),
        ("fsdp2", None),
    ]
    given = plans_of(matrix={"backend": ["ddp", "fsdp2"], "batch": [1]}, train={"weights": "bf16"})
    assert [p.cell.id for p in given] == [plans[1].cell.id, plans[2].cell.id]
    full = plans_of(matrix={"backend": ["ddp"], "mixed_precision": ["no"], "weights": ["fp32", "bf16"], "batch": [1]})
    assert len(full) == 1


def test_weights_are_fp32_by_default_as_accelerate_has_them() -> None:
    (plan,) = plans_of(matrix={"backend": ["ddp"], "batch": [1]})
    assert plan.cell.train.weights == "fp32"


@pytest.mark.parametrize(
    ("fields", "device", "expected"),
    [
        ({}, CPU, {"bf16"}),
        ({}, SLOW_IN_BF16, {"no"}),
        ({"launch": {"mixed_precision": "bf16"}}, SLOW_IN_BF16, {"bf16"}),
        ({"launch": {"mixed_precision": "no"}}, CPU, {"no"}),
        ({"matrix": {"backend": ["ddp"], "mixed_precision": ["bf16"], "batch": [1]}}, SLOW_IN_BF16, {"bf16"}),
    ],
)
def test_the_default_precision_is_one_that_the_device_has_instructions_for(
    fields: dict[str, Any], device: Hardware, expected: set[str]
) -> None:
    matrix = matrix_of(**{"matrix": {"backend": ["ddp"], "batch": [1]}, **fields})
    assert {plan.cell.mixed_precision for plan in expand(matrix, device)} == expected


def test_options_hold_every_field_of_the_workload() -> None:
    (plan,) = plans_of(matrix={"backend": ["ddp"], "layers": [[3, 4]], "batch": [1]})
    expected = {"num_cams": 1, "attention": "sdpa", "grad_ckpt": False, "width": 8, "scale": 1.0, "layers": [3, 4]}
    assert plan.cell.options == expected


def test_two_combinations_of_one_cell_merge_their_batches() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "batch": [4, 1]}, include=[{"backend": "ddp", "batch": 2}])
    assert [plan.batches for plan in plans] == [(1, 2, 4)]


def test_axes_name_every_column_for_every_cell_backend_first() -> None:
    plans = plans_of(
        matrix={"num_cams": [1, 2], "backend": ["ddp"], "batch": [1]}, include=[{"num_cams": 2, "grad_ckpt": True}]
    )
    assert [list(plan.axes.items()) for plan in plans] == [
        [("backend", "ddp"), ("num_cams", 1), ("grad_ckpt", False)],
        [("backend", "ddp"), ("num_cams", 2), ("grad_ckpt", True)],
    ]


def test_single_has_one_process_and_the_rest_one_per_gpu() -> None:
    matrix = matrix_of(matrix={"backend": ["single", "ddp"], "batch": [1]})
    assert [p.cell.num_processes for p in expand(matrix, GPUS)] == [1, 4]
    assert [p.cell.num_processes for p in expand(matrix, CPU)] == [1, 2]


def test_a_memory_limit_is_bytes_in_the_cell(load_text: Callable[..., Matrix]) -> None:
    matrix = load_text("matrix: {backend: ddp, batch: 1}\nlaunch: {memory_limit: 8GiB}\n")
    assert expand(matrix, CPU)[0].cell.memory_limit_bytes == 8 * 2**30


@pytest.mark.parametrize(
    "text",
    [
        "matrix: {backend: ddp, batch: [1, probe]}\n",
        "matrix: {backend: ddp, batch: [1]}\ninclude: [{backend: ddp, batch: probe}]\n",
    ],
)
def test_a_named_batch_and_a_search_are_of_one_cell(text: str, load_text: Callable[..., Matrix]) -> None:
    tiny = "workload: {name: pi07, preset: tiny}\n"
    matrix = load_text(tiny + text)
    (plan,) = expand(matrix, CPU)
    assert (plan.batches, plan.search) == ((1,), True)
    assert plan.cell.memory_limit_bytes == 320 * 2**20
    (picked,) = narrow(expand(matrix, CPU), select=["batch=1"])
    assert picked.cell == plan.cell
    assert expand(load_text(tiny + "matrix: {backend: ddp, batch: 1}\n"), CPU)[0].cell.memory_limit_bytes is None
    assert expand(matrix, GPUS)[0].cell.memory_limit_bytes is None


def test_the_limit_of_a_matrix_that_searches_is_that_of_each_cell_s_preset(load_text: Callable[..., Matrix]) -> None:
    text = "workload: {name: pi07}\nmatrix: {backend: ddp, preset: [tiny, small], batch: 1}\n"
    text += "include: [{backend: zero2, preset: tiny, batch: probe}]\n"
    limits = [plan.cell.memory_limit_bytes for plan in expand(load_text(text), CPU)]
    assert limits == [320 * 2**20, 6 * 2**30, 320 * 2**20]


# Laws

VALUES: dict[str, list[Any]] = {
    "backend": ["single", "ddp", "fsdp", "zero2", "zero3"],
    "num_cams": [1, 2, 3],
    "attention": ["eager", "sdpa"],
    "grad_ckpt": [True, False],
    "optimizer": ["adamw", "none"],
    "preset": ["tiny", "large"],
}
BASE = {"backend": "ddp", "batch": 1}


@st.composite
def axes_of(draw: st.DrawFn) -> dict[str, list[Any]]:
    names = draw(st.permutations(list(VALUES)))[: draw(st.integers(1, 4))]
    axes = {name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, unique=True)) for name in names}
    if draw(st.booleans()):
        axes["batch"] = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True))
    return axes


@st.composite
def entries_of(draw: st.DrawFn, axes: dict[str, list[Any]], names: list[str]) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    return {name: draw(st.sampled_from(axes.get(name, VALUES.get(name, [1])))) for name in chosen}


@given(axes_of())
def test_no_cell_appears_twice(axes: dict[str, list[Any]]) -> None:
    plans = plans_of(matrix=axes, defaults=BASE)
    assert len({plan.cell.id for plan in plans}) == len(plans)
    assert all(list(plan.batches) == sorted(set(plan.batches)) for plan in plans)


@given(axes_of(), st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_order(axes: dict[str, list[Any]], random: Any) -> None:
    names = random.sample(list(axes), len(axes))
    shuffled = {name: random.sample(axes[name], len(axes[name])) for name in names}
    assert points(plans_of(matrix=axes, defaults=BASE)) == points(plans_of(matrix=shuffled, defaults=BASE))


@given(st.data())
def test_exclude_law(data: st.DataObject) -> None:
    """No result matches an exclude, and excluding removes exactly what matches."""
    axes = data.draw(axes_of())
    excludes = data.draw(st.lists(entries_of(axes, list(axes)), min_size=1, max_size=3))
    everything = plans_of(matrix=axes, defaults=BASE)

    def excluded(plan: CellPlan, batch: int) -> bool:
        facts = {**plan.axes, "batch": batch}
        return any(all(facts[name] == value for name, value in entry.items()) for entry in excludes)

    expected = {(plan.cell.id, b) for plan in everything for b in plan.batches if not excluded(plan, b)}
    if expected:
        assert points(plans_of(matrix=axes, defaults=BASE, exclude=excludes)) == expected
    else:
        with pytest.raises(InputError, match="every combination is excluded"):
            plans_of(matrix=axes, defaults=BASE, exclude=excludes)


@given(st.data())
def test_include_law(data: st.DataObject) -> None:
    """Original combinations keep their values, and nothing is lost."""
    axes = data.draw(axes_of())
    names = [*VALUES, "batch"]
    includes = data.draw(st.lists(entries_of(axes, names), min_size=1, max_size=3))

    def kept(plans: list[CellPlan]) -> set[str]:
        facts = ({**plan.axes, "batch": batch} for plan in plans for batch in plan.batches)
        return {json.dumps([fact[name] for name in axes]) for fact in facts}

    before = plans_of(matrix=axes, defaults=BASE)
    after = plans_of(matrix=axes, defaults=BASE, include=includes)
    assert kept(before) <= kept(after)
    fewer = plans_of(matrix=axes, defaults=BASE, include=includes[:-1])
    assert kept(fewer) <= kept(after)


@given(st.data())
def test_select_and_exclude_are_complements(data: st.DataObject) -> None:
    axes = data.draw(axes_of())
    matrix = matrix_of(matrix=axes, defaults=BASE)
    name = data.draw(st.sampled_from(list(axes)))
    chosen = data.draw(st.lists(st.sampled_from(axes[name]), min_size=1, unique=True))
    assume(len(chosen) < len(axes[name]))
    condition = f"{name}={','.join(json.dumps(value) for value in chosen)}"
    selected = points(narrow(expand(matrix, CPU), select=[condition]))
    rest = points(narrow(expand(matrix, CPU), exclude=[condition]))
    assert selected.isdisjoint(rest)
    assert selected | rest == points(expand(matrix, CPU))


@given(axes_of())
def test_a_plan_survives_json(axes: dict[str, list[Any]]) -> None:
    for plan in plans_of(matrix=axes, defaults=BASE):
        assert Cell.model_validate_json(plan.cell.model_dump_json()).id == plan.cell.id


def test_the_order_of_a_set_is_the_same_in_each_process(load_text: Callable[..., Matrix]) -> None:
    names = [f"name{number}" for number in range(20)]
    workload = "workload: {name: 'tests.toy_workloads:of_names'}\n"
    (plan,) = expand(load_text(f"{workload}matrix: {{backend: ddp, batch: 1, names: [{names}]}}\n"), CPU)
    assert plan.cell.options["names"] == sorted(names)
