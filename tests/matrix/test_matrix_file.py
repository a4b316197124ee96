"""The JSON Schema of the matrix file, and the matrices that come with bench."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_schema import fits
from toy_matrices import CPU, GPUS, MATRICES, matrix_of

from bench.errors import InputError
from bench.matrix import Matrix, expand, json_schema, load, yaml_file
from bench.records.machine import Hardware

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


def test_what_decides_is_launched_again_by_default() -> None:
    matrix = matrix_of(matrix={"backend": "ddp", "batch": 1})
    assert matrix.measure.launches == "auto"
    assert [plan.launches for plan in expand(matrix, CPU)] == [1]
