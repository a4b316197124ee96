"""A command in the place of a workload: what it is handed, and what is refused before anything is launched."""

from collections.abc import Callable

import pytest
from toy_matrices import CPU, GPUS

from bench.errors import InputError
from bench.matrix import Matrix, expand

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
        (text().replace('"{out}"', "x"), ("command: {out} is missing",)),
        (text().replace('"{batch}"', "many"), ("command: {batch} or {batch_global} is missing",)),
        (text(rest="workload: {name: pi07}\n"), ("given.yaml:4: workload: ", "not both")),
        (text(rest="train: {compile: true}\n"), ("given.yaml:4: train: ",)),
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


def test_gpu_memory_of_a_script_has_no_limit(load_text: LoadText) -> None:
    with pytest.raises(InputError, match="cannot limit the GPU memory"):
        load_text(text(rest="launch: {memory_limit: 8GiB}\n"), GPUS)
