"""A matrix with a command, on the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli.app import app

MATRIX = """
command: [accelerate, launch, --config_file, "{accelerate_config}", train.py, "{batch}", "{out}"]
matrix: {backend: [ddp, fsdp2], batch: 2}
"""


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    (tmp_path / "own.yaml").write_text(MATRIX)
    return str(tmp_path / "own.yaml")


def test_a_dry_run_shows_the_command_and_its_config(matrix: str) -> None:
    shown = CliRunner().invoke(app, ["run", matrix, "--dry-run", "launch.num_processes=2"])
    assert shown.exit_code == 0, shown.output
    assert "  command: accelerate launch --config_file attempts/ddp-" in shown.output
    assert "/script.json" in shown.output
    assert "    main_process_port: 0" in shown.output
    assert "ACCELERATE_USE_CPU=true" in shown.output
    assert "  skipped: without a GPU, accelerate runs every script with DDP" in shown.output


@pytest.mark.parametrize("words", [["audit", "params"], ["calibrate"]])
def test_what_needs_ranks_of_bench_says_so(words: list[str], matrix: str, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, [*words, matrix, "--out", str(tmp_path / "out")])
    assert said.exit_code == 2
    assert "command: " in said.output
    assert "a script has none" in said.output
    assert not (tmp_path / "out").exists()
