"""A matrix with a command, on the command line."""

import shlex
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


QUICK = """
command: [python, -c, "open('{out}', 'w').write('{{\\"t\\": 0.1, \\"n\\": 1}}')", "{batch}", "{mode}", "{trial}"]
result: {step_time_s: t, num_processes: n}
matrix: {mode: [a, b], trial: [x, y], batch: [1, 2]}
choices: [mode, trial]
measure: {launches: 1}
"""


@pytest.mark.parametrize(
    "asked", ["--select batch=2", "--exclude 'mode=a trial=x'", "--select batch=2 --until 50% --budget 1s"]
)
def test_a_report_goes_on_with_the_batches_and_cells_that_were_asked_for(tmp_path: Path, asked: str) -> None:
    (tmp_path / "m.yaml").write_text(QUICK)
    words = ["run", str(tmp_path / "m.yaml"), *shlex.split(asked), "--out", str(tmp_path / "run")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    written = (tmp_path / "run/report.md").read_text()
    cells, until, how = asked.partition(" --until")
    again = f"{tmp_path}/run/matrix.yaml {cells} --out {tmp_path}/run-again{until}{how}"
    assert f"Reproduce: `bench run {again}`" in written
    assert "missing" not in written


def test_a_report_of_best_says_why_it_ended_and_repeats_what_was_asked(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(QUICK)
    asked = ["--best", "--settle", "0.1%", "--budget", "2s"]
    said = CliRunner().invoke(app, ["run", str(tmp_path / "m.yaml"), *asked, "--out", str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    written = (tmp_path / "run/report.md").read_text()
    again = f"Reproduce: `bench run {tmp_path}/run/matrix.yaml --best --out {tmp_path}/run-again"
    assert f"{again} --settle 0.1% --budget 2s`" in written
    assert "The budget of 2 s is spent: the same command goes on with a new one" in written


def test_a_dry_run_shows_the_command_of_each_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\np = argparse.ArgumentParser()\n")
    with (tmp_path / "train.py").open("a") as file:
        file.write("p.add_argument('--bs', type=int)\np.add_argument('--accum', type=int, default=4)\n")
    CliRunner().invoke(app, ["init", "--script", str(tmp_path / "train.py")])

    def commands(*axes: str) -> list[str]:
        options = [word for axis in axes for word in ("--axis", axis)]
        shown = CliRunner().invoke(app, ["run", str(tmp_path / "train.yaml"), "--dry-run", *options])
        assert shown.exit_code == 0, shown.output
        return [line.strip() for line in shown.output.splitlines() if "command" in line]

    assert commands("global_batch=512", "batch=32,128") == [
        "command of batch 32: python train.py --bs 32 --accum 16",
        "command of batch 128: python train.py --bs 128 --accum 4",
    ]
    assert commands("batch=8") == ["command: python train.py --bs 8 --accum 4"]
    assert commands("batch=probe") == ["command of batch 1: python train.py --bs 1 --accum 4"]
    many = commands("batch=1,2,3,4,5,6")
    assert (len(many), many[3:]) == (5, ["command of batch 4: python train.py --bs 4 --accum 4", "and 2 more commands"])
