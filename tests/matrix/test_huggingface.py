"""The fields of a Hugging Face model in a matrix file: beside `config`, in it, and as axes."""

from pathlib import Path

import pytest
from toy_matrices import CPU

from bench.errors import InputError
from bench.matrix import expand, load

FILE = """\
workload:
  name: hf:gpt2
  config:
    n_embd: 32
    n_head: 2
    n_layer: 3
  seq_len: 16
matrix: {backend: [ddp], n_layer: [1, 2], batch: 2}
"""


def options(tmp_path: Path, text: str = FILE, *overrides: str) -> list[tuple[object, ...]]:
    file = tmp_path / "gpt2.yaml"
    file.write_text(text)
    cells = [plan.cell for plan in expand(load(file, overrides=overrides, hardware=CPU), CPU)]
    return [tuple(cell.options[name] for name in ("n_embd", "n_layer", "seq_len")) for cell in cells]


def test_axes_and_fields_beside_it_override_config(tmp_path: Path) -> None:
    assert options(tmp_path) == [(32, 1, 16), (32, 2, 16)]
    assert options(tmp_path, FILE.replace("n_layer: [1, 2], ", "")) == [(32, 3, 16)]
    assert options(tmp_path, FILE, "workload.n_embd=64", "workload.config.n_head=4") == [(64, 1, 16), (64, 2, 16)]


def test_a_field_beside_config_and_in_it_is_refused_and_an_override_comes_first(tmp_path: Path) -> None:
    twice = FILE.replace("  seq_len: 16", "  seq_len: 16\n  n_embd: 64")
    with pytest.raises(InputError, match=r"gpt2.yaml:4: workload.config.n_embd: 'n_embd' is given twice, first at"):
        options(tmp_path, twice)
    for key in ("workload.n_embd", "workload.config.n_embd"):
        assert options(tmp_path, FILE, f"{key}=8") == [(8, 1, 16), (8, 2, 16)]
    beside = FILE.replace("    n_embd: 32\n", "").replace("  seq_len: 16", "  seq_len: 16\n  n_embd: 64")
    assert options(tmp_path, beside, "workload.config.n_embd=8") == [(8, 1, 16), (8, 2, 16)]
    with pytest.raises(InputError, match=r"workload.config.n_layer=7: has no effect: n_layer is set in matrix"):
        options(tmp_path, FILE, "workload.config.n_layer=7")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("    n_layers: 3", "gpt2.yaml:6: workload.n_layers: unknown field 'n_layers'"),
        ("    n_layer: many", "gpt2.yaml:6: workload.n_layer: 'many' cannot be used"),
        ("    attn_pdrop: 0.1", "gpt2.yaml:6: workload.attn_pdrop: "),
    ],
)
def test_a_wrong_field_in_config_is_named_with_its_line(tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        options(tmp_path, FILE.replace("    n_layer: 3", wrong).replace("n_layer: [1, 2], ", ""))
    assert message in str(error.value)
