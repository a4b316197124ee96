"""Options that are made from the fields that they set."""

import json
from pathlib import Path

import pytest
import yaml
from commands import QUICKSTART, bench

from bench.cli import app, selection, settings
from bench.matrix.matrix_file import MatrixFile


@pytest.mark.parametrize("command", ["run", "probe"])
def test_each_option_says_what_its_field_says(command: str) -> None:
    options = {parameter.name: parameter for parameter in app.load(command).params}
    for key in (*settings.JOB, *(settings.SEARCH if command == "probe" else ())):
        section, _, name = key.partition(".")
        field = MatrixFile.model_fields[section].get_default(call_default_factory=True).__class__.model_fields[name]
        said = " ".join((field.description or "").replace("``", "").split())
        assert said
        assert options[name].help.startswith(said)


def test_help_lists_options_under_headings_and_each_once() -> None:
    text = bench("probe", "--help").output
    headings = ["What to measure:", "Search:", "How to measure:", "Where:", "Output:", "Options:"]
    assert sorted(headings, key=text.index) == headings
    listed = [line.split()[0] for line in text.partition(headings[0])[2].splitlines() if line.startswith("  --")]
    options = [each.opts[0] for each in app.load("probe").params if each.param_type_name == "option"]
    assert sorted(listed) == sorted([*options, "--help"])


def test_what_an_option_sets_is_what_the_field_sets() -> None:
    given = {"nodes": "2", "time": "2:00:00", "exclusive": False, "prologue": ["module load cuda", "a: b"], "qos": "12"}
    matrix, *_ = selection.read(Path(QUICKSTART), settings={**given, "account": None}, launcher="slurm")
    job = matrix.slurm
    assert (matrix.launch.nodes, job.time, job.exclusive, job.prologue) == (
        2,
        "2:00:00",
        False,
        ("module load cuda", "a: b"),
    )
    assert (job.qos, job.account) == ("12", None)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--max-batch", "0", "a batch is at least 1"),
        ("--memory-limit", "90%", "a size such as 8GiB"),
        ("--tolerance", "200%", "a share of the largest batch"),
        ("--nodes", "x", "a whole number"),
        ("--time", "soon", "cannot be used"),
    ],
)
def test_a_wrong_value_is_said_of_the_option(option: str, value: str, problem: str) -> None:
    done = bench("probe", "--backend", "ddp", option, value, "--dry-run")
    assert done.exit_code == 2
    assert done.output.startswith(f"bench: {option} {value}: ")
    assert problem in done.output


def test_an_override_goes_above_an_option() -> None:
    matrix, *_ = selection.read(Path(QUICKSTART), ["slurm.qos=long"], settings={"qos": "short"}, launcher="slurm")
    assert matrix.slurm.qos == "long"
    assert yaml.safe_load(matrix.text())["slurm"] == json.loads('{"qos": "long"}')
