"""`--launcher slurm` on a machine without Slurm: its script, and what is refused before anything is submitted."""

import errno
from pathlib import Path

import pytest
from commands import QUICKSTART, bench
from fake_nvml import Driver

from bench.cli import selection
from bench.records.slurm import JOB

OPTIONS = ("--launcher", "slurm", "--out")


@pytest.fixture(autouse=True)
def without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize(
    ("options", "began"),
    [
        ((), False),
        (("--rerun", "all"), True),
        (("--until", "2%", "--budget", "1h"), True),
        (("--best", "--budget", "1h"), True),
        (("--best",), False),
    ],
)
def test_only_a_command_that_may_begin_anew_says_when_it_began(
    tmp_path: Path, options: tuple[str, ...], began: bool
) -> None:
    done = bench("run", QUICKSTART, *OPTIONS, str(tmp_path / "run"), "--dry-run", *options)
    assert done.exit_code == 0
    assert done.output.startswith("#!/bin/bash\n#SBATCH --job-name=bench-run-")
    assert ("export BENCH_BEGAN=" in done.output) == began
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["50%", "a\nrm -rf x"])
def test_a_folder_whose_name_slurm_would_change_is_refused(tmp_path: Path, name: str) -> None:
    done = bench("run", QUICKSTART, *OPTIONS, str(tmp_path / name), "--dry-run")
    assert done.exit_code == 2
    assert "which Slurm reads as its own" in done.output
    assert "choose another folder with --out" in done.output
    assert "#SBATCH" not in done.output


@pytest.mark.parametrize(
    ("options", "once"),
    [((), False), (("--jobs", "2"), True), (("--jobs", "2", "measure.launches=3"), False)],
)
def test_by_default_several_jobs_launch_nothing_again(tmp_path: Path, options: tuple[str, ...], once: bool) -> None:
    done = bench("run", QUICKSTART, *OPTIONS, str(tmp_path / "run"), "--dry-run", *options)
    assert done.exit_code == 0
    assert ("measure.launches=1" in done.output) == once
    asked = bench("run", QUICKSTART, *OPTIONS, str(tmp_path), "--dry-run", "--jobs", "2", "measure.launches=auto")
    assert asked.exit_code == 2
    assert "measure.launches: auto: cannot be combined with --jobs" in asked.output


def test_jobs_are_submitted_where_slurm_is(tmp_path: Path) -> None:
    done = bench("run", QUICKSTART, *OPTIONS, str(tmp_path / "run"))
    assert done.exit_code == 2
    assert "sbatch is not installed on this machine" in done.output
    assert not (tmp_path / "run").exists()


def test_a_shell_beside_the_nodes_of_a_job_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for job, problem in ((None, "this is no job of Slurm"), ("7", "this shell is not on a node of the job 7")):
        if job is not None:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        done = bench("run", QUICKSTART, "--launcher", "srun", "--out", str(tmp_path / "run"))
        assert done.exit_code == 2
        assert problem in done.output
        assert not (tmp_path / "run").exists()


def test_several_nodes_with_gpus_need_to_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n1"), ("SLURM_JOB_NUM_NODES", "2")):
        monkeypatch.setenv(name, value)
    done = bench("run", QUICKSTART, "--launcher", "srun", "--nodes", "2", "--out", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert "slurm.gpus_per_node: the other nodes would give no GPU to ranks" in done.output
    assert "add --gpus-per-node=2" in done.output
    assert not (tmp_path / "run").exists()


def test_a_file_system_that_fails_on_one_node_is_no_refusal_of_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", "matrix.yaml")

    monkeypatch.setattr(selection, "read", stale)
    for job, code in ((None, 2), (tmp_path / "slurm" / "7", 1)):
        if job is not None:
            monkeypatch.setenv(JOB, str(job))
        done = bench("run", QUICKSTART)
        assert (done.exit_code, done.output) == (code, "bench: matrix.yaml: Stale file handle\n")
