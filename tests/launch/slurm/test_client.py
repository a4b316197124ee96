"""What Slurm's commands print, as one learns it from the real ones: tests/slurm runs those."""

import stat
from pathlib import Path

import pytest

from bench.launch.slurm import client
from bench.launch.slurm.client import Away, Refused, Seen, seconds


@pytest.mark.parametrize(
    ("left", "expected"),
    [("5:00", 300), ("1:02:03", 3723), ("2-00:00:01", 172801), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_time_left(left: str, expected: float | None) -> None:
    assert seconds(left) == expected


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    return tmp_path


def test_all_jobs_are_asked_for_at_once_and_accounts_only_for_the_forgotten(path: Path) -> None:
    program(
        path,
        "squeue",
        f"echo call >> {path}/calls; echo '7|RUNNING|None|n[1-2]|1:00|2999-01-01T00:00:00'\n"
        "echo '8|PENDING|Priority||INVALID|N/A'",
    )
    program(path, "sacct", "echo '9|CANCELLED by 0'")
    assert client.look(["7", "8", "9"]) == {
        "7": Seen("RUNNING", "", "n[1-2]", 60.0),
        "8": Seen("PENDING", "Priority", "", None),
        "9": Seen("CANCELLED"),
    }
    assert (path / "calls").read_text() == "call\n"


def test_a_silent_controller_says_nothing_of_a_job(path: Path) -> None:
    program(path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Away, match="Unable to contact"):
        client.look(["7"])


def test_an_id_that_slurm_forgot_is_not_a_silent_controller(path: Path) -> None:
    program(path, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert client.look(["7"]) == {}


def test_a_refusal_is_told_in_slurms_words(path: Path, tmp_path: Path) -> None:
    program(path, "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(Refused, match=r"^Invalid account$"):
        client.submit(tmp_path / "x.sh", tmp_path / "x.out")
    program(path, "sbatch", "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(Away):
        client.submit(tmp_path / "x.sh", tmp_path / "x.out")


def test_a_cluster_without_accounts_has_forgotten_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "squeue", "exit 0")
    (path / "sacct").unlink()
    monkeypatch.setenv("PATH", str(path))
    program(path, "squeue", ":")
    assert client.look(["7"]) == {}
