"""Jobs that measure in one folder, also those that the user began by hand: no cell has two owners that are alive, and
what a job was interrupted in is counted. Slurm is made up here; tests/slurm has a real one."""

from pathlib import Path

import pytest

from bench.errors import InputError
from bench.launch.slurm import allocation, client, job_end
from bench.launch.slurm.allocation import Allocation
from bench.launch.slurm.client import JobStatus
from bench.launch.slurm.node import _meeting
from bench.records.slurm import JOB
from bench.store import jobs, tries
from bench.store.jobs import End, JobEnd, JobFolder

CELL = "ddp-0123456789"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, JobStatus]:
    """What Slurm says."""
    made = {"1": JobStatus("RUNNING"), "2": JobStatus("RUNNING")}
    monkeypatch.setattr(client, "look", lambda numbers: {one: made[one] for one in numbers if one in made})
    monkeypatch.setattr("bench.launch.slurm.allocation.ASK_EVERY_S", 0.0)
    monkeypatch.setattr(job_end, "POLL_S", 0.01)
    monkeypatch.setattr(job_end, "QUIET_S", 0.1)
    monkeypatch.delenv(JOB, raising=False)
    return made


def underway(root: Path, name: str = "b1") -> Path:
    folder = root / "attempts" / CELL / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    return folder


def test_two_allocations_by_hand_share_the_cells(tmp_path: Path, seen: dict[str, JobStatus]) -> None:
    first, second = Allocation(tmp_path, "1"), Allocation(tmp_path, "2")
    with first.entered(), second.entered():
        assert first.claims.take(CELL)
        assert not second.claims.take(CELL)
    assert second.claims.take(CELL)  # the first bench has ended; the user may hold the nodes for longer
    assert not first.claims.holds(CELL)
    with first.entered():
        assert not jobs.of_run(tmp_path, "1").is_over()


def test_one_bench_at_a_time_measures_in_a_job(tmp_path: Path, seen: dict[str, JobStatus]) -> None:
    again = pytest.raises(InputError, match="another bench")
    with Allocation(tmp_path, "1").entered(), again, Allocation(tmp_path, "1").entered():
        pass


def test_the_guard_of_a_job_notes_its_end(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.of_run(tmp_path, "1")
    monkeypatch.setenv(JOB, str(job.folder))
    with Allocation(tmp_path, "1").entered():
        pass
    assert job.end() is None


def test_a_cell_is_free_when_nothing_of_its_owner_is_left(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = jobs.of_run(tmp_path, "1"), underway(tmp_path, "walk")
    job.begin()
    assert Allocation(tmp_path, "1").claims.take(CELL)
    beats = iter(range(10**6))
    monkeypatch.setattr(JobFolder, "alive", lambda _: str(next(beats)))
    seen["1"] = JobStatus("NODE_FAIL")
    job.set_job_end(JobEnd(state="NODE_FAIL"))
    assert not Allocation(tmp_path, "2").claims.take(CELL)  # its guard beats: the node has lost its slurmd alone
    assert tries.lost(tmp_path, folder) == []
    monkeypatch.setattr(JobFolder, "alive", lambda _: "7")
    assert Allocation(tmp_path, "2").claims.take(CELL)
    assert tries.lost(tmp_path, folder) == ["the Slurm job 1 ended with NODE_FAIL"]
    assert job_end.close(tmp_path, job, JobEnd(state="NODE_FAIL")) == 0  # who follows it does not count it again
    assert tries.lost(tmp_path, folder) == ["the Slurm job 1 ended with NODE_FAIL"]


@pytest.mark.parametrize(
    ("job_end", "code", "lost"),
    [
        (JobEnd(state="CANCELLED", asked=True), -15, 0),
        (JobEnd(state="CANCELLED"), -15, 1),
        (None, 0, 0),
        (None, 2, 0),
        (None, -9, 1),
    ],
)
def test_only_what_no_user_ended_counts_as_lost(
    tmp_path: Path, seen: dict[str, JobStatus], job_end: JobEnd | None, code: int, lost: int
) -> None:
    job, folder = jobs.of_run(tmp_path, "1"), underway(tmp_path)
    assert Allocation(tmp_path, "1").claims.take(CELL)
    job.begin()
    job.set_end(End(exit_code=code))
    if job_end is not None:
        job.set_job_end(job_end)
    seen["1"] = JobStatus("CANCELLED")
    assert Allocation(tmp_path, "2").claims.take(CELL)
    assert len(tries.lost(tmp_path, folder)) == lost


def test_a_silent_controller_frees_no_cell(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Allocation(tmp_path, "1").claims.take(CELL)

    def away(_: object) -> dict[str, JobStatus]:
        raise client.ControllerUnavailable

    monkeypatch.setattr(client, "look", away)
    assert not Allocation(tmp_path, "2").claims.take(CELL)


def silent(monkeypatch: pytest.MonkeyPatch, answers: list[JobStatus | None]) -> None:
    """Slurm's answers in turn, the last one for ever; None: it does not answer."""
    monkeypatch.setattr(allocation, "BETWEEN_S", 0.0)

    def look(_: object) -> dict[str, JobStatus]:
        if (answer := answers.pop(0) if len(answers) > 1 else answers[0]) is None:
            raise client.ControllerUnavailable
        return {"1": answer}

    monkeypatch.setattr(client, "look", look)


@pytest.mark.parametrize(("state", "ending"), [("NODE_FAIL", True), ("RUNNING", False)])
def test_a_failure_waits_for_a_controller_that_is_away(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch, state: str, ending: bool
) -> None:
    silent(monkeypatch, [None] * 9 + [JobStatus(state)])
    assert Allocation(tmp_path, "1").is_ending() is ending


@pytest.mark.parametrize("error", [client.ControllerUnavailable, client.RequestRejected])
def test_a_failure_waits_no_longer_than_it_may(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def look(_: object) -> dict[str, JobStatus]:
        raise error

    monkeypatch.setattr(client, "look", look)
    monkeypatch.setattr(allocation, "BETWEEN_S", 0.0)
    monkeypatch.setattr(allocation, "SILENCE_S", 0.0 if error is client.ControllerUnavailable else 1e6)
    assert not Allocation(tmp_path, "1").is_ending()


def test_the_time_left_goes_on_while_the_controller_is_away(
    tmp_path: Path, seen: dict[str, JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch, [JobStatus("RUNNING", left_s=1000.0), None])
    one = Allocation(tmp_path, "1")
    first, second = one.left_s(), one.left_s()
    assert second < first <= 1000


def test_launches_meet_in_their_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.launch.slurm.node.MEET_WITHIN_S", 0.0)
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    meeting = _meeting(tmp_path, first=True)
    assert _meeting(tmp_path, first=False) == meeting
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    with pytest.raises(SystemExit, match="the first node did not write"):
        _meeting(tmp_path, first=False)
