"""The script of a job: what was asked for and nothing else, and no word of it is run by a shell."""

import shlex
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from bench.launch.slurm.script import job_name, misreads, options_of, request_of, script
from bench.records.slurm import Slurm

ROOT = Path("/runs/mine")
OURS = (
    "--job-name=x",
    "--nodes=3",
    "-N3",
    "-Jx",
    "--arr 1-4",
    "-a1",
    "--requeue",
    "--wait",
    "-W",
    "--output=x",
    "-o x",
    "-Mx",
    "--clusters=x",
    "--test-only",
)


def text(asked: Slurm, *arguments: str, nodes: int = 1) -> str:
    name, folder = job_name(ROOT), Path("/my work")
    return script(asked, nodes, name, ROOT, python="/env/bin/python", folder=folder, arguments=arguments)


def directives(asked: Slurm, nodes: int = 1) -> list[str]:
    lines = text(asked, nodes=nodes).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]


def test_a_request_without_wishes_leaves_the_rest_to_the_cluster() -> None:
    assert directives(Slurm()) == [
        f"--job-name={job_name(ROOT)}",
        *("--nodes=1", "--ntasks-per-node=1", "--no-requeue", "--exclusive", "--mem=0"),
    ]


def test_every_wish_is_one_line() -> None:
    asked = Slurm(
        gpus_per_node=8,
        partition="gpu",
        account="lab",
        qos="high",
        constraint="a100&ib",
        time="1-02:00:00",
        exclusive=False,
        sbatch=("--mem=64G", "--reservation=x"),
    )
    assert directives(asked, nodes=4)[1:] == [
        *("--nodes=4", "--ntasks-per-node=1", "--no-requeue", "--gpus-per-node=8", "--partition=gpu"),
        *("--account=lab", "--qos=high", "--constraint=a100&ib", "--time=1-02:00:00", "--mem=64G", "--reservation=x"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "a b"},
        {"partition": "x\n#SBATCH --uid=0"},
        {"account": 'a"b'},
        {"time": "soon"},
        {"sbatch": ("--mem=1\nrm -rf /",)},
        {"sbatch": ("mem=1",)},
        {"sbatch": ('--comment="a',)},
        *({"sbatch": (one,)} for one in OURS),
        {"nodes": 0},
        {"gpus": 1},
    ],
)
def test_what_could_be_another_line_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Slurm.model_validate(wrong)


def test_arguments_and_folders_reach_bench_as_they_are(tmp_path: Path) -> None:
    said = tmp_path / "said"
    printer = tmp_path / "python"
    printer.write_text(f'#!/bin/sh\nfor one in "$@"; do echo "$one"; done > {shlex.quote(str(said))}\npwd >> {said}\n')
    printer.chmod(0o755)
    folder = tmp_path / "my $HOME; work"
    folder.mkdir()
    hostile = ["run", "a b.yaml", "workload.name='x'; touch y", "$(touch z)", "`touch w`"]
    root = tmp_path / "it's"
    asked = Slurm(prologue=("export FROM_PROLOGUE=1",))
    job = script(asked, 1, "name", root, python=str(printer), folder=folder, arguments=hostile)
    subprocess.run(["bash", "-c", job], check=True)
    *arguments, ran_in = said.read_text().splitlines()
    assert arguments == ["-P", "-m", "bench.launch.slurm.guard", str(root), *hostile]
    assert ran_in == str(folder)
    assert list(folder.iterdir()) == []


def test_a_line_of_the_prologue_that_fails_ends_the_job(tmp_path: Path) -> None:
    said = tmp_path / "said"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {said}\n")
    python.chmod(0o755)
    for line, starts in (("false || true", True), ("module_that_is_not_there load cuda", False)):
        said.unlink(missing_ok=True)
        job = script(Slurm(prologue=(line,)), 1, "x", ROOT, python=str(python), folder=tmp_path, arguments=["run"])
        assert (subprocess.run(["bash", "-c", job], check=False).returncode == 0, said.exists()) == (starts, starts)


def test_a_number_is_a_time_in_minutes() -> None:
    assert Slurm.model_validate({"time": 90}).time == "90"
    with pytest.raises(ValidationError):
        Slurm.model_validate({"time": True})


def test_what_a_script_asks_for_can_be_given_to_sbatch_itself() -> None:
    asked = Slurm(exclusive=False, time="5", sbatch=("--mem=64G", '--comment="a b"', "-C 'x y'"))
    assert options_of(text(asked, "run", "#SBATCH --no")) == [
        *(f"--job-name={job_name(ROOT)}", "--nodes=1", "--ntasks-per-node=1", "--no-requeue", "--time=5"),
        *("--mem=64G", "--comment=a b", "-C", "x y"),
    ]


def test_a_job_is_named_after_its_run_folder() -> None:
    assert job_name(Path("/a/run")) != job_name(Path("/b/run"))
    assert job_name(Path("/a/my run,x")).startswith("bench-my_run_x-")


def test_a_link_to_a_run_folder_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    assert job_name(tmp_path / "link") == job_name(tmp_path / "run")


@pytest.mark.parametrize("name", ["50%", "a\nrm -rf x", "a\\b", "a\rb"])
def test_slurm_reads_some_names_of_folders_as_something_else(name: str) -> None:
    assert misreads(Path("/runs") / name)
    assert not misreads(Path("/runs/my run's é & $HOME; `x`"))


def test_two_scripts_ask_for_the_same_whenever_they_were_made() -> None:
    def made(began: str | None, *arguments: str) -> str:
        return script(Slurm(), 1, "x", ROOT, python="python", folder=Path("/"), arguments=arguments, began=began)

    assert request_of(made("2026-01-01T00:00:00+00:00")) == request_of(made("2026-01-02T00:00:00+00:00"))
    assert request_of(made("2026-01-01T00:00:00+00:00")) != request_of(made("2026-01-01T00:00:00+00:00", "run"))
    assert request_of(None) is None
