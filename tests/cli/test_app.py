"""The command line as a user meets it: quick help, one message for bad input, and exit codes that say what happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import QUICKSTART, bench
from examples import result, stored
from typer.testing import CliRunner

from bench import __version__
from bench.cli.app import COMMANDS, app, load

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("elsewhere")
TORCH_SIDE = {"torch", "accelerate", "deepspeed", "transformers", "pandas"}


def imported(*arguments: str, cwd: Path) -> set[str]:
    """Top-level packages that the command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "bench.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"bench", "typer"} <= packages
    return packages


def test_help_imports_next_to_nothing(tmp_path: Path) -> None:
    assert not imported("--help", cwd=tmp_path) & (TORCH_SIDE | {"pydantic", "yaml", "psutil", "rich"})


def test_a_dry_run_needs_no_torch_and_leaves_no_trace(tmp_path: Path) -> None:
    assert not imported("run", QUICKSTART, "--dry-run", cwd=tmp_path) & TORCH_SIDE
    assert list(tmp_path.iterdir()) == []


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    stored(tmp_path / "reports" / "mine", [result(batch=2)])
    assert not imported("report", cwd=tmp_path) & TORCH_SIDE


def test_help_names_every_command_in_the_order_of_use() -> None:
    done = bench("--help")
    assert done.exit_code == 0
    listed = done.output.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(command: str) -> None:
    said = load(command).help.partition("\n\n")[0]
    assert said == f"{COMMANDS[command][1]}."


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    done = bench("repot")
    assert done.exit_code == 2
    assert "No such command 'repot'. Did you mean 'report'" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = bench(command, "--help")
    assert done.exit_code == 0
    assert f" {command} " in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--unknown",),
        ("unknown",),
        ("run",),
        ("run", QUICKSTART, "--unknown"),
        ("run", QUICKSTART, "--rerun", "some"),
        ("run", QUICKSTART, "--isolation", "none"),
        ("report", "a", "b"),
        ("schema", "report"),
        ("doctor", "me"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_told() -> None:
    done = bench("--version")
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_a_value_that_an_option_does_not_take_is_told_without_the_library_s_words() -> None:
    done = bench("schema", "foo")
    assert done.exit_code == 2
    assert "'foo' is not one of 'matrix', 'result'" in done.stderr
    assert "Value error" not in done.stderr


def test_a_group_without_a_command_prints_its_help_in_lines() -> None:
    done = CliRunner().invoke(app, ["audit"])
    assert done.exit_code == 2
    assert "\nCommands:\n  collectives" in done.output


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_message(tmp_path: Path, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        for arguments in (["--help"], ["--version"], ["run", "--help"]):
            command = [sys.executable, "-m", "bench.cli", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (2, "bench: No space left on device\n")
