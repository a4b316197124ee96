"""Expansion: GitHub's own examples, what the fields mean, and laws that hold for any matrix."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from json_schema import fits

from bench.errors import InputError
from bench.matrix import CellPlan, Matrix, expand, json_schema, load, yaml_file
from bench.matrix.matrix_file import WorkloadChoice
from bench.records.cell import Cell
from bench.records.machine import Hardware

CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=16 * 2**30)
GPUS = Hardware(device="cuda", devices=4, cores=64, memory_bytes=80 * 2**30)
TOY = "tests.workloads:Toy"
MATRICES = Path(__file__).parents[2] / "matrices"


def matrix_of(**fields: Any) -> Matrix:
    toy = WorkloadChoice.model_validate({"name": TOY, **fields.pop("workload", {})})
    return Matrix(name="test", workload=toy, **fields)


def plans_of(**fields: Any) -> list[CellPlan]:
    return expand(matrix_of(**fields), CPU)


def points(plans: list[CellPlan]) -> set[tuple[str, int]]:
    return {(plan.cell.id, batch) for plan in plans for batch in plan.batches}


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Matrix]:
    def load_text(text: str, hardware: Hardware = CPU, **given: Any) -> Matrix:
        path = tmp_path / "given.yaml"
        path.write_text(f"workload: {{name: '{TOY}'}}\n{text}" if "workload:" not in text else text)
        return load(path, hardware=hardware, **given)

    return load_text


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


def test_options_hold_every_field_of_the_workload() -> None:
    (plan,) = plans_of(matrix={"backend": ["ddp"], "layers": [[3, 4]], "batch": [1]})
    expected = {"num_cams": 1, "attention": "sdpa", "grad_ckpt": False, "width": 8, "scale": 1.0, "layers": [3, 4]}
    assert plan.cell.options == expected


def test_two_combinations_of_one_cell_merge_their_batches() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "batch": [4, 1]}, include=[{"backend": "ddp", "batch": 2}])
    assert [plan.batches for plan in plans] == [(1, 2, 4)]


def test_an_added_combination_is_measured_at_every_batch() -> None:
    plans = plans_of(matrix={"backend": ["ddp"], "batch": [1, 2]}, include=[{"backend": "zero2"}])
    assert [plan.batches for plan in plans] == [(1, 2), (1, 2)]


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


def test_a_cpu_measures_fewer_steps_unless_told(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: ddp, batch: 1}\nmeasure: {steps: 9}\n"
    on_cpu, on_gpu = load_text(text).measure, load_text(text, GPUS).measure
    assert (on_cpu.warmup_steps, on_cpu.steps, on_cpu.phase_steps) == (2, 9, 3)
    assert (on_gpu.warmup_steps, on_gpu.steps, on_gpu.phase_steps) == (20, 9, 10)


def test_preset_auto_says_what_it_chose(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: ddp, batch: 1}\n"
    assert load_text(text).notes == ("preset: auto chose 'tiny' for cpu with 8.00 GiB per rank",)
    assert load_text(text, GPUS).notes == ("preset: auto chose 'large' for cuda with 80.00 GiB per rank",)
    assert load_text(text, overrides=["workload.preset=tiny"]).notes == ()


def test_a_memory_limit_is_bytes_in_the_cell(load_text: Callable[..., Matrix]) -> None:
    matrix = load_text("matrix: {backend: ddp, batch: 1}\nlaunch: {memory_limit: 8GiB}\n")
    assert expand(matrix, CPU)[0].cell.memory_limit_bytes == 8 * 2**30


def test_an_own_accelerate_config_becomes_part_of_the_cell(tmp_path: Path, load_text: Callable[..., Matrix]) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": "auto"}')
    (tmp_path / "own.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: 'no'\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    text = "matrix: {backend: [ddp, {name: mine, config_file: own.yaml}], batch: 1}\nexclude: [{backend: ddp}]\n"
    matrix = load_text(text)
    (plan,) = expand(matrix, CPU)
    assert plan.cell.backend == "mine"
    assert plan.cell.mixed_precision == "no"
    assert plan.cell.accelerate is not None
    assert plan.cell.accelerate["deepspeed_config"] == {
        "deepspeed_config_file": {"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": "auto"}
    }
    assert "mine: launch.num_processes 2 replaces its own 8" in matrix.notes
    (tmp_path / "own.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\n")
    alone = load_text(text)
    assert expand(alone, CPU)[0].cell.num_processes == 1
    assert [note for note in alone.notes if "num_processes" in note] == [
        "mine: distributed_type NO runs one process and ignores launch.num_processes 2"
    ]
    (tmp_path / "own.yaml").write_text("mixed_precision: 'no'\n")
    asked = load_text(text + "launch: {mixed_precision: bf16}\n").notes
    assert "mine: its own mixed_precision no overrides launch.mixed_precision bf16" in asked
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert expand(load_text(text), CPU)[0].cell.id != plan.cell.id


def test_the_stored_matrix_of_an_own_config_is_read_again_elsewhere(
    tmp_path: Path, load_text: Callable[..., Matrix]
) -> None:
    (tmp_path / "own.yaml").write_text("mixed_precision: 'no'\n")
    mine = "{name: mine, config_file: own.yaml}"
    for text in (
        f"matrix: {{backend: [ddp, {mine}], batch: [1, 2]}}\nexclude: [{{backend: mine, batch: 2}}]\n",
        f"matrix: {{batch: 1}}\ninclude: [{{backend: {mine}}}]\n",
        f"matrix: {{num_cams: [1, 2], batch: 1}}\ndefaults: {{backend: {mine}}}\ninclude: [{{backend: mine}}]\n",
    ):
        matrix = load_text(text)
        stored = tmp_path / "run" / "matrix.yaml"
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(matrix.text())
        assert f"config_file: {tmp_path}/own.yaml" in matrix.text()
        assert expand(load(stored, hardware=CPU), CPU) == expand(matrix, CPU)


def test_an_override_holds_where_an_added_combination_names_no_axis(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: [ddp], num_cams: [1], batch: 1}\ninclude: [{backend: single}]\n"
    plans = expand(load_text(text, overrides=["workload.num_cams=2"]), CPU)
    assert [(p.cell.backend, p.cell.options["num_cams"]) for p in plans] == [("ddp", 1), ("single", 2)]


def test_overrides_and_axes_from_the_command_line(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: [ddp, fsdp], batch: 1}\nexclude: [{backend: fsdp}]\n"
    overrides = ["measure.steps=7", "name=other", "matrix.batch=[2, 4]", "launch.num_processes=1"]
    matrix = load_text(text, overrides=overrides, axes=["num_cams=1,2", "backend=zero2,zero3"])
    plans = expand(matrix, CPU)
    assert matrix.name == "other"
    assert [(p.cell.backend, p.cell.options["num_cams"]) for p in plans] == [
        ("zero2", 1), ("zero2", 2), ("zero3", 1), ("zero3", 2),
    ]  # fmt: skip
    assert {(p.cell.measure.steps, p.batches, p.cell.num_processes) for p in plans} == {(7, (2, 4), 1)}


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (
            "matrix: {backend: [ddp, fsdp], batch: [2, 4]}\n"
            "include: [{backend: single, batch: 8}, {backend: ddp, num_cams: 3, batch: 4}]\n"
            "exclude: [{backend: fsdp, batch: 4}]\n",
            [("ddp", 1), ("fsdp", 1), ("single", 1), ("ddp", 3)],
        ),
        ("include: [{backend: ddp, batch: 4}, {backend: fsdp, batch: [2, 4]}]\n", [("ddp", 1), ("fsdp", 1)]),
        ("matrix: {backend: [ddp]}\ninclude: [{num_cams: 3, batch: 4}]\n", [("ddp", 3)]),
        ("matrix: {backend: [ddp]}\ndefaults: {batch: 4}\n", [("ddp", 1)]),
    ],
)
def test_a_probe_is_of_every_cell_whatever_batches_the_file_names(
    text: str, cells: list[tuple[str, int]], load_text: Callable[..., Matrix]
) -> None:
    matrix = load_text(text, probed=True)
    plans = expand(matrix, CPU)
    assert [(plan.cell.backend, plan.cell.options["num_cams"]) for plan in plans] == cells
    assert {plan.batches for plan in plans} == {("probe",)}
    assert expand(load_text(matrix.text()), CPU) == plans


def test_a_probe_says_which_batches_it_leaves(load_text: Callable[..., Matrix]) -> None:
    text = "workload: {name: 'tests.workloads:Toy', preset: tiny}\nmatrix: {backend: ddp, batch: [2, 4, probe]}\n"
    text += "include: [{backend: fsdp, batch: 8}, {backend: zero2}]\n"
    (note,) = load_text(text, probed=True).notes
    assert note == "bench probe searches every cell and ignores the batches of the matrix (2, 4, 8)"
    assert load_text(text).notes == ()
    assert load_text(text.replace("[2, 4, probe]", "probe").replace("8}", "probe}"), probed=True).notes == ()


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
    assert plan.batches == (1, "probe")
    assert plan.cell.memory_limit_bytes == 320 * 2**20
    (picked,) = expand(matrix, CPU, select=["batch=1"])
    assert picked.cell == plan.cell
    assert expand(load_text(tiny + "matrix: {backend: ddp, batch: 1}\n"), CPU)[0].cell.memory_limit_bytes is None
    assert expand(matrix, GPUS)[0].cell.memory_limit_bytes is None


def test_the_limit_of_a_matrix_that_searches_is_that_of_each_cell_s_preset(load_text: Callable[..., Matrix]) -> None:
    text = "workload: {name: pi07}\nmatrix: {backend: ddp, preset: [tiny, small], batch: 1}\n"
    text += "include: [{backend: zero2, preset: tiny, batch: probe}]\n"
    limits = [plan.cell.memory_limit_bytes for plan in expand(load_text(text), CPU)]
    assert limits == [320 * 2**20, 6 * 2**30, 320 * 2**20]


def test_a_backend_picks_cells_that_an_include_adds_too() -> None:
    matrix = matrix_of(matrix={"backend": ["ddp", "fsdp"], "batch": [1]}, include=[{"backend": "zero2"}])
    assert [plan.cell.backend for plan in expand(matrix, CPU, backend="ddp")] == ["ddp"]
    assert [plan.cell.backend for plan in expand(matrix, CPU, backend="zero2,fsdp")] == ["fsdp", "zero2"]
    with pytest.raises(InputError, match="backend is never 'zero3'") as told:
        expand(matrix, CPU, backend="zero3")
    assert told.value.where == "--backend zero3"
    assert "to measure it anyway: --axis backend=zero3" in str(told.value)
    with pytest.raises(InputError, match=r"did you mean .*fsdp"):
        expand(matrix, CPU, backend="fsdpp")


def test_select_and_exclude_narrow_cells_and_batches() -> None:
    matrix = matrix_of(matrix={"backend": ["ddp", "fsdp"], "num_cams": [1, 4], "batch": [1, 2]})
    plans = expand(matrix, CPU, select=["backend=fsdp", "batch=2"], exclude=["backend=fsdp num_cams=4"])
    assert [(p.cell.backend, p.axes["num_cams"], p.batches) for p in plans] == [("fsdp", 1, (2,))]


def test_aliases_are_read(load_text: Callable[..., Matrix]) -> None:
    matrix = load_text("matrix: {backend: ddp, batch: &sizes [1, 2], num_cams: *sizes}\n")
    assert len(expand(matrix, CPU)) == 2


# The shipped files


def test_the_shipped_schema_is_in_step() -> None:
    """If this fails: ``bench schema matrix > matrices/matrix.schema.json``."""
    assert json.loads((MATRICES / "matrix.schema.json").read_text()) == json.loads(json.dumps(json_schema()))


@pytest.mark.parametrize("path", sorted(MATRICES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("hardware", [CPU, GPUS], ids=["cpu", "cuda"])
def test_shipped_matrices_expand_and_name_their_schema(path: Path, hardware: Hardware) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=matrix.schema.json\n")
    assert expand(load(path, hardware=hardware), hardware)


@pytest.mark.parametrize("path", sorted(MATRICES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_matrices_fit_their_schema(path: Path) -> None:
    assert fits(yaml_file.read(path).data, json_schema())


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("matrix.batch", [1, "probe", [8, "probe"]], [0, "prob", [8, 8], True]),
        ("defaults.batch", [4, "probe", [8, "probe"]], ["best"]),
        ("probe.headroom", [0.9, "90%", " 90 %"], ["90", "most", [0.9]]),
        ("probe.tolerance", [0, "3%", "2.5%"], ["%", None]),
        ("launch.memory_limit", ["auto", "8GiB", "8gib", "1.5 GB", ".5Gib", "8g", 2**30], ["much"]),
    ],
)
def test_the_schema_allows_what_a_matrix_may_hold_and_no_more(
    field: str, good: list[Any], bad: list[Any], load_text: Callable[..., Matrix]
) -> None:
    section, _, name = field.partition(".")
    for value in good:
        fields: dict[str, Any] = {"matrix": {"backend": "ddp", "batch": 1}}
        fields[section] = {**fields.get(section, {}), name: value}
        assert fits(fields, json_schema()), value
        assert expand(load_text("".join(f"{key}: {json.dumps(each)}\n" for key, each in fields.items())), CPU)
    assert [value for value in bad if fits({section: {name: value}}, json_schema())] == []


@pytest.mark.parametrize("size", ["much", "90%", "8GiB or so", "1.2.3GiB", "8gbit", 90])
def test_what_the_schema_refuses_as_a_size_is_refused_when_it_is_read(
    size: Any, load_text: Callable[..., Matrix]
) -> None:
    launch = {"memory_limit": size}
    assert not fits({"launch": launch}, json_schema())
    with pytest.raises(InputError, match="cannot be used"):
        load_text(f"matrix: {{backend: ddp, batch: 1}}\nlaunch: {json.dumps(launch)}\n")


def test_backends_measures_all_eight_at_one_global_batch() -> None:
    plans = expand(load(MATRICES / "backends.yaml", hardware=CPU), CPU)
    assert len(plans) == 8
    assert {plan.cell.num_processes * batch for plan in plans for batch in plan.batches} == {4}


def test_fsdp_vs_zero2_is_the_published_ten_cells() -> None:
    plans = expand(load(MATRICES / "fsdp_vs_zero2.yaml", hardware=CPU), CPU)
    pairs = {(1, "sdpa", True), (1, "eager", False), (4, "sdpa", True), (4, "eager", False)}
    expected = {(backend, *pair) for backend in ("fsdp", "zero2") for pair in pairs}
    expected |= {("fsdp_grad_op", 1, "sdpa", True), ("fsdp_grad_op", 4, "sdpa", True)}
    seen = [(p.cell.backend, *(p.axes[k] for k in ("num_cams", "attention", "grad_ckpt"))) for p in plans]
    assert len(seen) == 10
    assert set(seen) == expected


def test_zero2_vs_zero3_is_at_the_published_size_where_one_gpu_cannot_hold_it() -> None:
    plans = expand(load(MATRICES / "zero2_vs_zero3_pi05.yaml", hardware=GPUS), GPUS)
    assert {plan.cell.options["preset"] for plan in plans} == {"pi05"}


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
    selected = points(expand(matrix, CPU, select=[condition]))
    rest = points(expand(matrix, CPU, exclude=[condition]))
    assert selected.isdisjoint(rest)
    assert selected | rest == points(expand(matrix, CPU))


@given(axes_of())
def test_a_plan_survives_json(axes: dict[str, list[Any]]) -> None:
    for plan in plans_of(matrix=axes, defaults=BASE):
        assert Cell.model_validate_json(plan.cell.model_dump_json()).id == plan.cell.id
