"""Loading a matrix: its file, the configs that it names, and the overrides of the command line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_matrices import CPU, GPUS

from bench.errors import InputError
from bench.matrix import Matrix, expand, load


def test_a_cpu_measures_fewer_steps_unless_told(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: ddp, batch: 1}\nmeasure: {steps: 9}\n"
    on_cpu, on_gpu = load_text(text).measure, load_text(text, GPUS).measure
    assert (on_cpu.warmup_steps, on_cpu.steps, on_cpu.phase_steps) == (2, 9, 5)
    assert (on_gpu.warmup_steps, on_gpu.steps, on_gpu.phase_steps) == (20, 9, 10)
    assert (on_cpu.dataloader_workers, on_gpu.dataloader_workers) == (0, 2)
    assert (on_cpu.warmup_s, on_gpu.warmup_s) == (0, 10)
    assert load_text("measure: {dataloader_workers: 0}", GPUS).measure.dataloader_workers == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("matrix: {backend: ddp, batch: 1, weights: [fp32, bf16]}\n", True),
        ("train: {weights: bf16}\nmatrix: {backend: ddp, batch: 1}\n", True),
        ("train: {weights: bf16}\nmatrix: {backend: ddp, batch: 1}\nlaunch: {mixed_precision: bf16}\n", False),
        ("train: {weights: bf16}\nmatrix: {backend: ddp, batch: 1, mixed_precision: 'no'}\n", False),
        ("matrix: {backend: ddp, batch: 1}\n", False),
    ],
)
def test_bf16_weights_without_instructions_for_bf16_are_told(
    text: str, told: bool, load_text: Callable[..., Matrix]
) -> None:
    slow = CPU.model_copy(update={"bf16": False})
    assert any("weights: bf16 has no effect" in note for note in load_text(text, slow).notes) is told
    assert not any("weights: bf16" in note for note in load_text(text).notes)


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        ("a100_run-2.b", True),
        ("müller", True),
        ("実験1", True),
        ("опыт", True),
        ("-x", False),
        ("a b", False),
        ("a/b", False),
    ],
)
def test_a_name_is_letters_of_any_language(name: str, is_taken: bool, load_text: Callable[..., Matrix]) -> None:
    text = f"name: '{name}'\nmatrix: {{backend: ddp, batch: 1}}\n"
    if is_taken:
        assert load_text(text).name == name
    else:
        with pytest.raises(InputError, match="becomes a folder's name"):
            load_text(text)


def test_preset_auto_says_what_it_chose(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: ddp, batch: 1}\n"
    assert load_text(text).notes == ("preset: auto chose 'tiny' for cpu with 8.00 GiB per rank",)
    assert load_text(text, GPUS).notes == ("preset: auto chose 'large' for cuda with 80.00 GiB per rank",)
    assert load_text(text, overrides=["workload.preset=tiny"]).notes == ()


def test_an_own_accelerate_config_becomes_part_of_the_cell(tmp_path: Path, load_text: Callable[..., Matrix]) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}')
    (tmp_path / "own.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    text = "matrix: {backend: [ddp, {name: mine, config_file: own.yaml}], batch: 1}\nexclude: [{backend: ddp}]\n"
    matrix = load_text(text)
    (plan,) = expand(matrix, CPU)
    assert plan.cell.backend == "mine"
    assert plan.cell.mixed_precision == "no"
    assert plan.cell.accelerate is not None
    assert plan.cell.accelerate["deepspeed_config"] == {
        "deepspeed_config_file": {"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}
    }
    assert "mine: launch.num_processes 2 replaces its own 8" in matrix.notes
    (tmp_path / "own.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\n")
    alone = load_text(text)
    assert expand(alone, CPU)[0].cell.num_processes == 1
    assert [note for note in alone.notes if "num_processes" in note] == [
        "mine: distributed_type NO runs one process and ignores launch.num_processes 2"
    ]
    (tmp_path / "own.yaml").write_text("distributed_type: 'NO'\nmixed_precision: 'no'\n")
    asked = load_text(text + "launch: {mixed_precision: bf16}\n").notes
    assert "mine: its own mixed_precision no overrides launch.mixed_precision bf16" in asked
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    assert expand(load_text(text), CPU)[0].cell.id != plan.cell.id


def test_the_stored_matrix_of_an_own_config_is_read_again_elsewhere(
    tmp_path: Path, load_text: Callable[..., Matrix]
) -> None:
    (tmp_path / "own.yaml").write_text("distributed_type: 'NO'\nmixed_precision: 'no'\n")
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


@pytest.mark.parametrize(
    "text",
    [
        "workload: {name: './moving_net.py:made'}\nmatrix: {backend: {name: mine, config_file: own.yaml}, batch: 1}\n",
        "command: [python, s.py, '{batch}']\nmatrix: {batch: 1}\n",
    ],
)
def test_a_checkout_with_its_runs_may_move(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the current folder are relative to the stored matrix; those of a run elsewhere are absolute."""
    monkeypatch.setattr("sys.path", [*sys.path])
    before, after, run = tmp_path / "before", tmp_path / "after", Path("reports/run")
    (before / run).mkdir(parents=True)
    (before / "moving_net.py").write_text("def made(width: int = 1):\n    return None, [1]\n")
    (before / "own.yaml").write_text("distributed_type: MULTI_GPU\n")
    (before / "m.yaml").write_text(text)
    monkeypatch.chdir(before)
    matrix = load(Path("m.yaml"), hardware=CPU)
    assert str(before) in matrix.text(tmp_path / "elsewhere")
    (run / "matrix.yaml").write_text(matrix.text(run))
    assert str(before) not in (run / "matrix.yaml").read_text()
    cells = expand(matrix, CPU)
    monkeypatch.chdir(tmp_path)
    before.rename(after)
    sys.modules.pop("moving_net", None)  # of the folder that is gone
    assert expand(load(after / run / "matrix.yaml", hardware=CPU), CPU) == cells
    sys.modules.pop("moving_net", None)


def test_the_stored_matrix_measures_the_same(tmp_path: Path, load_text: Callable[..., Matrix]) -> None:
    """A device's default is not the field's: 50 steps are the one of a GPU, and 5 of a CPU."""
    matrix = load_text("matrix: {backend: ddp, batch: 1}\nmeasure: {steps: 50, warmup_steps: 20}\n")
    (tmp_path / "stored.yaml").write_text(matrix.text())
    assert expand(load(tmp_path / "stored.yaml", hardware=CPU), CPU) == expand(matrix, CPU)


def test_an_own_config_without_precision_takes_that_of_the_matrix_only_if_it_is_stated(
    tmp_path: Path, load_text: Callable[..., Matrix]
) -> None:
    """As `accelerate launch`, without and with --mixed_precision. The stored matrix states it as well."""
    (tmp_path / "own.yaml").write_text("distributed_type: MULTI_GPU\n")
    text = "matrix: {backend: {name: mine, config_file: own.yaml}, batch: 1}\n"
    assert expand(load_text(text), CPU)[0].cell.mixed_precision == "no"
    stated = load_text(text + "launch: {mixed_precision: bf16}\n")
    assert expand(stated, CPU)[0].cell.mixed_precision == "bf16"
    (tmp_path / "stored.yaml").write_text(stated.text())
    assert expand(load(tmp_path / "stored.yaml", hardware=CPU), CPU) == expand(stated, CPU)
    both = expand(load_text(text.replace("batch", "mixed_precision: [bf16, 'no'], batch")), CPU)
    assert [plan.cell.mixed_precision for plan in both] == ["bf16", "no"]


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
    assert {plan.batch_axis for plan in plans} == {("probe",)}
    assert expand(load_text(matrix.text()), CPU) == plans


def test_a_probe_says_which_batches_it_leaves(load_text: Callable[..., Matrix]) -> None:
    text = "workload: {name: 'tests.toy_workloads:Toy', preset: tiny}\nmatrix: {backend: ddp, batch: [2, 4, probe]}\n"
    text += "include: [{backend: fsdp, batch: 8}, {backend: zero2}]\n"
    (note,) = load_text(text, probed=True).notes
    assert note == "bench probe searches every cell and ignores the batches of the matrix (2, 4, 8)"
    assert load_text(text).notes == ()
    assert load_text(text.replace("[2, 4, probe]", "probe").replace("8}", "probe}"), probed=True).notes == ()


def test_aliases_are_read(load_text: Callable[..., Matrix]) -> None:
    matrix = load_text("matrix: {backend: ddp, batch: &sizes [1, 2], num_cams: *sizes}\n")
    assert len(expand(matrix, CPU)) == 2


@pytest.mark.parametrize("name", ["num_processes", "launch.num_processes"])
def test_a_setting_of_the_run_is_no_axis(load_text: Callable[..., Matrix], name: str) -> None:
    with pytest.raises(InputError) as refusal:
        load_text(f"matrix: {{backend: ddp, {name}: [1, 2]}}\n")
    assert refusal.value.fix is not None
    assert refusal.value.fix.startswith("set it under `launch:`")


@pytest.mark.parametrize("path", ["train.accumulate", "train.compile", "launch.mixed_precision", "workload.preset"])
def test_a_field_that_can_be_an_axis_is_one_under_its_own_name(path: str, load_text: Callable[..., Matrix]) -> None:
    with pytest.raises(InputError) as refusal:
        load_text("matrix: {backend: ddp, batch: 1}\n", axes=[f"{path}=1"])
    assert refusal.value.fix == f"write {path.rpartition('.')[2]}"


def test_choices_are_axes_of_the_file(load_text: Callable[..., Matrix]) -> None:
    text = "matrix: {backend: [ddp, fsdp], batch: [1, 2]}\ninclude: [{backend: ddp, preset: tiny}]\n"
    matrix = load_text(text + "choices: [backend, preset]\n")
    assert matrix.choices == ["backend", "preset"]
    assert "choices:\n- backend\n- preset\n" in matrix.text()
    assert load_text(text).choices == []
    assert "choices:" not in load_text(text).text()


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ("[backend, bach]", ["'bach' is not an axis of this matrix", "choices[1]", "batch", "did you mean"]),
        ("[seed]", ["'seed' is not an axis of this matrix", "backend, batch"]),
        ("[batch, batch]", ["choices[1]", "'batch' is listed twice"]),
    ],
)
def test_a_choice_that_is_no_axis_is_refused(choices: str, says: list[str], load_text: Callable[..., Matrix]) -> None:
    with pytest.raises(InputError) as refusal:
        load_text(f"matrix: {{backend: [ddp, fsdp], batch: [1, 2]}}\nchoices: {choices}\n")
    for words in says:
        assert words in str(refusal.value)


def test_no_hint_offers_a_name_that_reports_use(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("command: [train.py, '{batch}', '{out}']\nmatrix: {batch: [2], run: [1]}\n")
    with pytest.raises(InputError, match="'run' cannot be the name of a placeholder") as told:
        load(file, hardware=CPU)
    assert "put {run}" not in str(told.value)
