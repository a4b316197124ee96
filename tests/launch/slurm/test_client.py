"""What Slurm's commands print, as one learns it from the real ones: tests/slurm runs those."""

import stat
from pathlib import Path

import pytest

from bench.launch.slurm import client
from bench.launch.slurm.client import ControllerUnavailable, JobStatus, RequestRejected, seconds


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
        "7": JobStatus("RUNNING", "", "n[1-2]", 60.0),
        "8": JobStatus("PENDING", "Priority", "", None),
        "9": JobStatus("CANCELLED"),
    }
    assert (path / "calls").read_text() == "call\n"


def test_a_stopped_or_held_job_is_not_over_and_one_that_is_signaled_measures() -> None:
    for state in ("STOPPED", "REQUEUE_HOLD", "RESV_DEL_HOLD"):
        assert JobStatus(state).living
    assert "SIGNALING" in client.MEASURES
    assert not JobStatus("NODE_FAIL").living


@pytest.mark.parametrize(("states", "away"), [("idle\nmixed", False), ("idle\ndrained*", True), ("down", True)])
def test_nodes_out_of_service_are_those_of_the_jobs_partition(path: Path, states: str, away: bool) -> None:
    program(path, "squeue", "echo gpu")
    program(path, "sinfo", f'[ "$5" = gpu ] && printf "{states}\n"')
    assert client.nodes_are_away("7") == away
    (path / "sinfo").unlink()
    assert not client.nodes_are_away("7")


def test_a_silent_controller_says_nothing_of_a_job(path: Path) -> None:
    program(path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ControllerUnavailable, match="Unable to contact"):
        client.look(["7"])


def test_an_id_that_slurm_forgot_is_not_a_silent_controller(path: Path) -> None:
    program(path, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert client.look(["7"]) == {}


def test_the_variables_of_the_user_change_no_request_and_hide_no_job(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f'{{ echo "$0 $*"; env | grep -E "^(SL|SB|SQ|SC)"; }} | sed "s,^{path}/,," >> {path}/calls'
    for name, answer in (("sbatch", "echo 7"), ("squeue", ":"), ("scancel", ":")):
        program(path, name, f"{says}; {answer}")
    for name in ("SQUEUE_STATES", "SCANCEL_STATE", "SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SLURM_MEM_PER_CPU"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    (tmp_path / "x.sh").write_text("#!/bin/bash\n#SBATCH --time=5\necho\n")
    assert client.submit(tmp_path / "x.sh", tmp_path / "x.out") == "7"
    client.living("name")
    client.look(["7"])
    client.cancel(["7"])
    submitted, account, *others = (path / "calls").read_text().splitlines()
    assert submitted == f"sbatch --parsable --output={tmp_path}/x.out --time=5 {tmp_path}/x.sh"
    assert account == "SBATCH_ACCOUNT=lab"
    calls = [line for line in others if line != account]
    assert [line.split()[0] for line in calls] == ["squeue", "squeue", "scancel"]
    assert all(" -a " in line for line in calls if line.startswith("squeue"))  # also of hidden partitions


@pytest.mark.parametrize(
    ("said", "job"), [("7;other", "7"), ("Welcome\n7", "7"), ("allocation 7 test", None), ("", None)]
)
def test_the_id_of_a_job_is_a_number(path: Path, tmp_path: Path, said: str, job: str | None) -> None:
    program(path, "sbatch", f"printf '{said}\n'")
    (tmp_path / "x.sh").write_text("#!/bin/bash\n")
    if job is None:
        with pytest.raises(RequestRejected, match="sbatch named no job"):
            client.submit(tmp_path / "x.sh", tmp_path / "x.out")
    else:
        assert client.submit(tmp_path / "x.sh", tmp_path / "x.out") == job


def test_a_refusal_is_told_in_slurms_words(path: Path, tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("#!/bin/bash\n")
    program(path, "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(RequestRejected, match=r"^Invalid account$"):
        client.submit(tmp_path / "x.sh", tmp_path / "x.out")
    for words in (
        "Unable to contact slurm controller (connect failure)",
        "Zero Bytes were transmitted or received",
        "Batch job submission failed: Message receive failure",
    ):
        program(path, "sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
        with pytest.raises(ControllerUnavailable):
            client.submit(tmp_path / "x.sh", tmp_path / "x.out")


def test_a_cluster_without_accounts_has_forgotten_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "squeue", "exit 0")
    (path / "sacct").unlink()
    monkeypatch.setenv("PATH", str(path))
    program(path, "squeue", ":")
    assert client.look(["7"]) == {}
