"""A command in the place of a workload: what it is handed, and what is refused before anything is launched."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from toy_matrices import CPU, GPUS

from bench.errors import InputError
from bench.launch import attempt_files
from bench.launch.script_launch import script_command
from bench.matrix import Matrix, expand, left_out
from bench.records.cell import Attempt

COMMAND = 'command: [python, train.py, -b, "{batch}", -c, "{num_cams}", -o, "{out}"{more}]\n'
AXES = "matrix: {batch: [1, 2], num_cams: [1, 4]}\n"
LAUNCH = ', "{accelerate_config}"'

LoadText = Callable[..., Matrix]


def text(more: str = "", axes: str = AXES, rest: str = "") -> str:
    return "# workload: none\n" + COMMAND.replace("{more}", more) + axes + rest


def test_an_axis_is_a_placeholder(load_text: LoadText) -> None:
    plans = expand(load_text(text()), CPU)
    assert [(plan.label, plan.batches) for plan in plans] == [
        ("script num_cams=1", (1, 2)),
        ("script num_cams=4", (1, 2)),
    ]
    cell = plans[0].cell
    assert (cell.workload, cell.options, cell.num_processes) == ("train.py", {"num_cams": 1}, 1)
    assert cell.script is not None
    filled = cell.script.filled({"batch": 2, "num_cams": [True, None], "out": "a b.json"})
    assert filled == ["python", "train.py", "-b", "2", "-c", "[true, null]", "-o", "a b.json"]


def test_a_backend_is_handed_over_as_an_accelerate_config(load_text: LoadText) -> None:
    axes = "matrix: {backend: [single, fsdp2], batch: probe}\ndefaults: {num_cams: 1}\n"
    single, fsdp = expand(load_text(text(LAUNCH, axes, "units: [Block]\n"), GPUS), GPUS)
    assert (single.cell.num_processes, fsdp.cell.num_processes) == (1, GPUS.devices)
    assert fsdp.cell.script is not None
    assert fsdp.cell.script.units == ("Block",)
    on_cpu = expand(load_text(text(LAUNCH, axes)), CPU)
    assert on_cpu[0].cell.memory_limit_bytes is not None  # a search needs one


def test_another_command_is_another_cell_and_the_stored_matrix_is_the_same(load_text: LoadText) -> None:
    ids = [expand(load_text(text(more)), CPU)[0].cell.id for more in ("", ', "{seed}"', ", -x")]
    assert len(set(ids)) == 3
    matrix = load_text(text(', "{steps}"', rest="measure: {launches: 3}\n"))
    again = load_text(f"# workload: none\n{matrix.text()}")
    assert [plan.cell.id for plan in expand(again, CPU)] == [plan.cell.id for plan in expand(matrix, CPU)]
    assert again.folder == matrix.folder


def test_double_braces_are_braces(load_text: LoadText) -> None:
    script = expand(load_text(text(", '{{a}}'")), CPU)[0].cell.script
    assert script is not None
    assert script.filled({"batch": 1, "num_cams": 1, "out": "o"})[-1] == "{a}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (text(axes="matrix: {batch: 1, num_cam: 1}\n"), ("given.yaml:3: matrix.num_cam: ", "'num_cams'?")),
        (text(axes="matrix: {batch: 1, num_cams: 1, backend: ddp}\n"), ("matrix.backend: no placeholder", "{backend}")),
        (text(axes="matrix: {batch: 1}\n"), ("given.yaml:2: command[5]: the placeholder {num_cams} has no value",)),
        (text(', "{stps}"'), ("command[8]: the placeholder {stps}", "'steps'?")),
        (text(', "{batch.x}"'), ("command[8]: '{batch.x}': {batch.x} is not a placeholder", "{{ and }}")),
        (text(', "{"'), ("command[8]: '{': ",)),
        (text(', "{preset}"'), ("{preset} cannot be a placeholder",)),
        (text(', "{model_config}"'), ("{model_config} cannot be a placeholder",)),
        (text(', "{_x}"'), ("{_x} cannot be a placeholder",)),
        (text(rest="result: {step_time_s: a}\n").replace('"{out}"', "x"), ("command: {out} is missing", "observes")),
        (text(rest="result: {step_time_s: 'regex:('}\n"), ("result.step_time_s: '(' is no regular expression",)),
        (text(rest="result: {step_time_s: 'regex:a'}\n"), ("'a' has 0 groups",)),
        (text(rest="result: {step_time_s: 'regex:(a)', peak_gb: b}\n"), ("some figures from the output",)),
        (text(rest="measure: {seed: 3}\n").replace('"{out}"', "x"), ("measure.seed: has no effect",)),
        (text(', "{accum}"', AXES.replace("4]", "4], accum: [1, x]")), ("3: matrix.accum[1]: 'x' cannot be",)),
        (text().replace('"{batch}"', "many"), ("command: {batch} or {batch_global} is missing",)),
        (text(rest="workload: {name: pi07}\n"), ("given.yaml:4: workload: ", "not both")),
        (text(rest="train: {compile: unit}\n"), ("given.yaml:4: train.compile: ",)),
        (text(rest="train: {global_batch: 8}\n"), ("train.global_batch: has no effect", "--axis global_batch=8")),
        (text(', "{global_batch}"'), ("{global_batch} cannot be a placeholder", "{batch_global}")),
        (text(rest="launch: {num_processes: 2}\n"), ("launch.num_processes: has no effect", "{num_processes}")),
        (text(rest="measure: {steps: 3}\n"), ("measure.steps: has no effect", "put {steps} into")),
        (text(rest="result: {step_tim_s: a}\n"), ("result.step_tim_s: unknown figure", "'step_time_s'?")),
        (text(rest="result: {peak_gb: a}\n"), ("result: names neither a step time nor samples_per_s",)),
        ("matrix: {backend: ddp, batch: 1}\nunits: [A]\n", ("units belongs to a script",)),
    ],
)  # fmt: skip
def test_what_would_have_no_effect_is_refused(content: str, expected: tuple[str, ...], load_text: LoadText) -> None:
    with pytest.raises(InputError) as error:
        expand(load_text(content), CPU)
    assert [part for part in expected if part not in str(error.value)] == [], str(error.value)


def test_a_section_given_as_a_whole_is_checked_field_by_field(load_text: LoadText) -> None:
    for override in ("measure.seed=3", "measure={seed: 3}"):
        with pytest.raises(InputError, match=r"measure.seed: has no effect on the script"):
            expand(load_text(text(), overrides=[override]), CPU)


@pytest.mark.parametrize(
    ("more", "axes", "steps"),
    [
        (', "{gradient_accumulation_steps}"', "gradient_accumulation_steps: [1, 4]", [1, 4]),
        (', "{accum}"', "accum: [2]", [2]),
        (', --gradient-accumulation-steps, "8"', "", [8]),
        (", --grad_accum=20001", "", [20001]),
        (", trainer.accumulate_grad_batches=4", "", [4]),
        (", ++training.gradient_accumulation_steps=4", "", [4]),
        (', "--accum 4 --lr 1"', "", [4]),
        (', --accum, "2", --accum, "4"', "", [4]),
        (", --accum, ²", "", [1]),
        (', "{width}"', "width: [7]", [1]),
    ],
)
def test_the_accumulation_of_a_script_counts_in_its_global_batch(
    more: str, axes: str, steps: list[int], load_text: LoadText
) -> None:
    plans = expand(load_text(text(more, f"matrix: {{batch: 2, num_cams: 1, {axes}}}\n")), CPU)
    attempts = [Attempt(cell=plan.cell, batch_per_rank=2) for plan in plans]
    assert [attempt.cell.train.accumulate for attempt in attempts] == steps
    assert [attempt.batch_global for attempt in attempts] == [2 * count for count in steps]


@pytest.mark.parametrize("name", ["accumulate", "gas"])
def test_a_global_batch_fills_in_how_often_a_script_accumulates(name: str, load_text: LoadText) -> None:
    more, axes = f', "{{{name}}}"', "matrix: {batch: [2, 3, 4], num_cams: 1, global_batch: 8"
    matrix = load_text(text(more, axes + "}\n"))
    (plan,) = expand(matrix, CPU)
    attempts = [Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches]
    assert [(one.batch_per_rank, script_command(one, "/there")[-1], one.batch_global) for one in attempts] == [
        (2, "4", 8),
        (4, "2", 8),
    ]
    assert left_out(matrix, CPU) == ("left out: batch 3, which does not divide the 8 samples of a rank (8 / 1 rank)",)
    with pytest.raises(InputError, match=f"matrix.{name}: cannot be used with global_batch 8") as told:
        load_text(text(more, f"{axes}, {name}: 2}}\n"))
    assert told.value.fix == "leave one of the two out"
    with pytest.raises(InputError, match="no placeholder of the command uses 'global_batch'"):
        load_text(text("", axes + "}\n"))


def test_a_global_batch_of_every_combination_wins_over_a_default_of_the_file(load_text: LoadText) -> None:
    rest = text(', "{accum}"', "matrix: {batch: 2, num_cams: 1}\n", "defaults: {accum: 4}\n")
    (plan,) = expand(load_text(rest, axes=["global_batch=32"]), CPU)
    assert Attempt(cell=plan.cell, batch_per_rank=2).options["accum"] == 16
    for one in (
        {"overrides": ["defaults.global_batch=32"]},
        {"axes": ["global_batch=32,null"]},
        {"overrides": ["include=[{global_batch: 32}]"]},
    ):
        with pytest.raises(InputError, match=r"defaults\.accum: cannot be used with global_batch 32"):
            load_text(rest, **one)
    with pytest.raises(InputError, match=r"defaults\.accum=8: has no effect: it follows from global_batch"):
        load_text(rest, axes=["global_batch=32"], overrides=["defaults.accum=8"])


@pytest.mark.parametrize(
    ("command", "given", "fix"),
    [
        ("{accum}", "train.accumulate=2", "give --axis accum=2"),
        ("{accum}", "train.global_batch=32", "give --axis global_batch=32"),
        ("x", "train.accumulate=2", "put {0} into the command, and give --axis gradient_accumulation_steps=2"),
        ("x", "train.global_batch=32", "put {0} into the command, and give --axis global_batch=32"),
        ("{gas}", "matrix.accumulate=2", "write gas"),
        ("x", "matrix.global_batch=32", "put {0} into the command"),
        ("{global_batch}", "matrix.global_batch=32", "{1}; to keep them, put {0} into the command"),
        ("{global_batch} {accum}", "train.global_batch=32", "{1}; to keep them, give --axis global_batch=32"),
        ("{global_batch} {accum}", "matrix.global_batch=32", "{1}"),
    ],
)
def test_what_makes_a_script_accumulate_is_said_as_far_as_it_is_missing(
    command: str, given: str, fix: str, load_text: LoadText
) -> None:
    with pytest.raises(InputError) as told:
        load_text(text(f', "{command}"'), overrides=[given])
    hand_over = "hand them over as {batch_global}"
    assert told.value.fix == fix.replace("{0}", "{gradient_accumulation_steps}").replace("{1}", hand_over)


def test_two_placeholders_that_disagree_on_accumulation_are_refused(load_text: LoadText) -> None:
    more, axes = ', "{accum}", "{gas}"', "matrix: {batch: 2, num_cams: 1, accum: 2, gas: 4}\n"
    with pytest.raises(InputError, match="both say how many batches"):
        expand(load_text(text(more, axes)), CPU)


def test_a_scripts_own_config_is_handed_over_as_it_is_written(load_text: LoadText, tmp_path: Path) -> None:
    """bench would not measure a workload so: it accumulates, computes in fp16, compiles and splits sequences."""
    own = {
        "distributed_type": "DEEPSPEED", "mixed_precision": "fp16",
        "dynamo_config": {"dynamo_backend": "INDUCTOR"}, "parallelism_config": {"parallelism_config_cp_size": 2},
        "num_processes": 8, "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    }  # fmt: skip
    engine = {"gradient_accumulation_steps": 4, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": "auto"}}
    (tmp_path / "ds.json").write_text(json.dumps(engine))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    axes = "matrix: {backend: {name: mine, config_file: own.yaml}, batch: 1, num_cams: 1}\n"
    matrix = load_text(text(LAUNCH, axes), GPUS)
    (plan,) = expand(matrix, GPUS)
    assert (plan.cell.num_processes, plan.cell.mixed_precision) == (GPUS.devices, "fp16")
    written = attempt_files.files(Attempt(cell=plan.cell, batch_per_rank=1), None, "cuda", {}, "/there")
    config = yaml.safe_load(written["accelerate.yaml"])
    changed = {"num_processes": GPUS.devices, "main_process_port": 0}
    assert config == {**own, **changed, "deepspeed_config": {"deepspeed_config_file": "/there/deepspeed.json"}}
    assert json.loads(written["deepspeed.json"]) == engine
    assert "gradient_accumulation_steps 4 does not count in samples/s" in " ".join(matrix.notes)
    with pytest.raises(InputError, match="INDUCTOR"):
        load_text(axes, GPUS)  # without a command


def test_gpu_memory_of_a_script_has_no_limit(load_text: LoadText) -> None:
    with pytest.raises(InputError, match="cannot limit the GPU memory"):
        load_text(text(rest="launch: {memory_limit: 8GiB}\n"), GPUS)


def test_an_observed_script_has_the_steps_and_the_processes_of_the_matrix(load_text: LoadText) -> None:
    rest = "measure: {warmup_steps: 3, steps: 7}\n"
    observed = text(rest=rest).replace('"{out}"', "x")
    cell = expand(load_text(observed), CPU)[0].cell
    assert cell.script is not None
    assert cell.script.is_observed
    assert (cell.num_processes, cell.measure.warmup_steps, cell.measure.steps) == (1, 3, 7)
    torchrun = observed.replace("python,", "torchrun, --nproc_per_node=2,")
    assert expand(load_text(torchrun), CPU)[0].cell.num_processes == 2
    for option in ("--trainer.devices=4", "trainer.devices=4"):
        assert expand(load_text(observed.replace("x]", f"x, {option}]")), CPU)[0].cell.num_processes == 4
    stated = expand(load_text(observed + "launch: {num_processes: 3}\n"), CPU)[0].cell
    assert stated.num_processes == 3
    handed = observed.replace("python,", 'torchrun, --nproc_per_node, "{num_processes}",')
    assert expand(load_text(handed + "launch: {num_processes: 4}\n"), CPU)[0].cell.num_processes == 4


def test_a_script_with_a_result_is_not_observed(load_text: LoadText) -> None:
    script = expand(load_text(text()), CPU)[0].cell.script
    assert script is not None
    assert not script.is_observed
    read = text(rest="result: {samples_per_s: 'regex:([0-9.]+)'}\n").replace('"{out}"', "x")
    script = expand(load_text(read), CPU)[0].cell.script
    assert script is not None
    assert script.is_read_from_log
    assert not script.is_observed


@pytest.mark.parametrize("name", ["run", "workload", "memory_limit_bytes"])
@pytest.mark.parametrize("axes", ["matrix: {batch: 1, NAME: [1, 4]}\n", "matrix: {batch: 1}\ndefaults: {NAME: 1}\n"])
def test_a_name_that_reports_use_themselves_is_refused(load_text: LoadText, name: str, axes: str) -> None:
    """Their column would hold something else, and cells that differ in it would look the same."""
    given = axes.replace("NAME", name)
    with pytest.raises(InputError, match=f"'{name}' cannot be the name of a placeholder") as told:
        load_text(text(axes=given).replace("{num_cams}", f"{{{name}}}"))
    assert told.value.field in (f"matrix.{name}", f"defaults.{name}")
    assert ".yaml:" in str(told.value.where)
    assert f"such as {name}_id, also in the command: {{{name}_id}}" in str(told.value)
