"""Which jobs a command submits, follows and gives up. Slurm is made up here; tests/slurm has a real one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.launch.slurm import client, follow, job_end
from bench.launch.slurm.client import ControllerUnavailable, JobStatus, RequestRejected
from bench.launch.slurm.follow import Cancelled, Following, GivesUp, NeverRuns
from bench.records.slurm import BEGAN
from bench.store import jobs
from bench.store.jobs import OUT_OF_TIME, End, JobEnd

RUNNING = JobStatus("RUNNING")


class Cluster:
    """Jobs by id, and with which exit code bench ends in those that run; None: it goes on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, JobStatus] = {}
        self.codes: dict[str, int | None] = {}
        self.answers: list[Exception | None] = []
        """What sbatch says in turn; None: it takes the job."""
        self.submitted: list[str] = []

    def submit(self, script: Path, output: Path) -> str:
        if (answer := self.answers.pop(0) if self.answers else None) is not None:
            raise answer
        return self.take()

    def take(self) -> str:
        number = str(len(self.seen) + 1)
        self.seen[number] = RUNNING
        self.submitted.append(number)
        return number

    def living(self, name: str) -> list[str]:
        return [number for number, seen in self.seen.items() if seen.living]

    def look(self, numbers: list[str]) -> dict[str, JobStatus]:
        for number in numbers:
            code = self.codes.get(number, 0)
            if self.seen[number].state == "RUNNING" and code is not None:
                self.end(number, code)
        return {number: self.seen[number] for number in numbers}

    def end(self, number: str, code: int) -> None:
        job = jobs.of_run(self.root, number)
        job.folder.mkdir(parents=True, exist_ok=True)
        job.set_end(End(exit_code=code))
        self.seen[number] = JobStatus("COMPLETED" if code == 0 else "FAILED")

    def cancel(self, numbers: list[str]) -> None:
        self.seen |= {number: JobStatus("CANCELLED") for number in numbers}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    for name in ("submit", "living", "look", "cancel"):
        monkeypatch.setattr(client, name, getattr(made, name))
    for name in ("SOON_S", "LATER_S", "POLL_S"):
        monkeypatch.setattr(follow, name, 0.0)
    monkeypatch.setattr(job_end, "POLL_S", 0.0)
    return made


def following(
    root: Path, wanted: int = 1, is_finished: Callable[[], bool] = lambda: False
) -> tuple[Following, list[str]]:
    notes: list[str] = []
    show = SimpleNamespace(note=notes.append, relay=notes.append, status=lambda _: None)
    return Following(root, "name", "this script", wanted, show, is_finished), notes


def detached(cluster: Cluster, script: str | None, seen: JobStatus = RUNNING) -> str:
    """A job of an earlier command; by hand without a script."""
    number = cluster.take()
    cluster.submitted.clear()
    cluster.seen[number] = seen
    job = jobs.of_run(cluster.root, number)
    job.folder.mkdir(parents=True)
    if script is not None:
        job.script.write_text(script)
    return number


@pytest.mark.parametrize(("script", "more"), [("this script", []), ("another", ["2"]), (None, ["2"])])
def test_a_job_of_another_command_does_not_stand_for_this_one(
    cluster: Cluster, tmp_path: Path, script: str | None, more: list[str]
) -> None:
    detached(cluster, script)
    assert following(tmp_path)[0].run() == []
    assert cluster.submitted == more


def test_more_jobs_than_wanted_end(cluster: Cluster, tmp_path: Path) -> None:
    for _ in range(2):
        detached(cluster, "this script")
    assert following(tmp_path)[0].run() == []
    assert cluster.submitted == []


def test_a_lost_job_is_replaced_even_if_the_other_one_is_done(cluster: Cluster, tmp_path: Path) -> None:
    for _ in range(2):
        detached(cluster, "this script")
    cluster.codes = {"2": 1}
    assert following(tmp_path)[0].run() == []
    assert cluster.submitted == ["3"]


def test_jobs_that_another_bench_cancels_are_not_replaced(cluster: Cluster, tmp_path: Path) -> None:
    number = detached(cluster, "this script", JobStatus("PENDING", "Priority"))
    one, notes = following(tmp_path)
    show = one.show.note

    def cancel(text: str) -> None:
        show(text)
        if "goes on" in text:
            jobs.of_run(tmp_path, number).set_job_end(JobEnd(state="CANCELLED", asked=True))
            cluster.cancel([number])

    one.show.note = cancel
    with pytest.raises(Cancelled):
        one.run()
    assert cluster.submitted == []
    assert notes[-1] == f"job {number} is cancelled"
    assert jobs.of_run(tmp_path, number).job_end() == JobEnd(state="CANCELLED", asked=True)


@pytest.mark.parametrize("taken", [False, True])
def test_a_job_that_slurm_took_in_silence_is_not_submitted_twice(
    cluster: Cluster, tmp_path: Path, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.answers = [ControllerUnavailable("Socket timed out")]
    if taken:
        submit = cluster.submit

        def silent(script: Path, output: Path) -> str:
            if cluster.answers:
                cluster.take()
            return submit(script, output)

        monkeypatch.setattr(client, "submit", silent)
    assert following(tmp_path)[0].run() == []
    assert cluster.submitted == ["1"]


def test_a_refused_job_leaves_the_others_alone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers = [None, RequestRejected("Job limit")]
    one, notes = following(tmp_path, 2)
    assert one.run() == []
    assert cluster.submitted == ["1"]
    assert "no other job: Job limit" in notes
    cluster.answers = [RequestRejected("Job limit")]
    with pytest.raises(RequestRejected):
        following(tmp_path)[0].run()


def test_a_job_that_never_runs_leaves_the_others_alone(cluster: Cluster, tmp_path: Path) -> None:
    detached(cluster, "this script", JobStatus("PENDING", "Priority"))
    detached(cluster, "this script", JobStatus("PENDING", "InvalidQOS"))
    one, notes = following(tmp_path, 2)
    relay = one.show.note

    def runs_then(text: str) -> None:
        relay(text)
        if "no other job" in text:
            cluster.seen["1"] = JobStatus("RUNNING")

    one.show.note = runs_then
    assert one.run() == []
    assert cluster.seen["2"].state == "CANCELLED"
    assert any("job 2 can never run: InvalidQOS" in note for note in notes)
    detached(cluster, "this script", JobStatus("PENDING", "InvalidQOS"))
    with pytest.raises(NeverRuns):
        following(tmp_path)[0].run()


def test_a_reason_that_may_pass_is_waited_for_while_nodes_are_away(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detached(cluster, "this script", JobStatus("PENDING", "PartitionNodeLimit"))
    looks = []

    def away(job: str) -> bool:
        looks.append(job)
        if len(looks) == 3:
            cluster.seen["1"] = JobStatus("RUNNING")
        return True

    monkeypatch.setattr(client, "nodes_are_away", away)
    one, notes = following(tmp_path)
    assert one.run() == []
    assert looks == ["1"] * 3
    assert len([note for note in notes if "job 1 may never run" in note]) == 1
    detached(cluster, "this script", JobStatus("PENDING", "PartitionNodeLimit"))
    monkeypatch.setattr(client, "nodes_are_away", lambda _: False)
    with pytest.raises(NeverRuns):
        following(tmp_path)[0].run()


def test_jobs_that_slurm_does_not_end_go_on(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = (detached(cluster, "this script", JobStatus(state)) for state in ("RUNNING", "CANCELLED"))

    def refuses(numbers: list[str]) -> None:
        if theirs in numbers:
            raise RequestRejected("Access/permission denied")

    monkeypatch.setattr(client, "cancel", refuses)
    with pytest.raises(RequestRejected, match=f"job {theirs}: Access/permission denied"):
        job_end.end_jobs(tmp_path, [theirs, ours])
    assert jobs.of_run(tmp_path, theirs).job_end() is None
    assert jobs.of_run(tmp_path, ours).job_end() == JobEnd(state="CANCELLED", asked=True)

    def no_answer(_: list[str]) -> None:
        raise ControllerUnavailable("Unable to contact slurm controller")

    monkeypatch.setattr(client, "cancel", no_answer)
    with pytest.raises(ControllerUnavailable):
        job_end.end_jobs(tmp_path, [theirs, ours])
    assert jobs.of_run(tmp_path, theirs).job_end() is not None


def test_a_job_that_lives_under_another_name_is_followed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = detached(cluster, "this script", JobStatus("PENDING", "Priority"))
    monkeypatch.setattr(client, "living", lambda name: [])
    one, _ = following(tmp_path)
    one._adopt()
    assert one.living == [number]
    assert jobs.of_run(tmp_path, number).job_end() is None


@pytest.mark.parametrize("script", [None, "another"])
def test_a_refusal_in_a_job_of_another_command_ends_nothing(cluster: Cluster, tmp_path: Path, script: str) -> None:
    detached(cluster, script)
    detached(cluster, "this script")
    cluster.codes = {"1": 2}
    one, notes = following(tmp_path)
    assert one.run() == []
    assert "job 1, of another command, ended with exit code 2" in notes
    assert cluster.seen["2"].state == "COMPLETED"


def test_a_refusal_ends_the_jobs_of_this_command_alone(cluster: Cluster, tmp_path: Path) -> None:
    detached(cluster, "this script")
    for script in ("another", "this script"):
        detached(cluster, script, JobStatus("PENDING", "Priority"))
    cluster.codes = {"1": 2}
    assert following(tmp_path)[0].run() == ["bench ended with exit code 2 in job 1"]
    assert {number: seen.state for number, seen in cluster.seen.items()} == {
        "1": "FAILED",
        "2": "PENDING",
        "3": "CANCELLED",
    }


def test_a_job_of_another_command_that_can_never_run_is_left_to_it(cluster: Cluster, tmp_path: Path) -> None:
    detached(cluster, "another", JobStatus("PENDING", "InvalidQOS"))
    one, notes = following(tmp_path)
    assert one.run() == []
    assert any("job 1 can never run: InvalidQOS" in note for note in notes)
    assert cluster.seen["1"].state == "PENDING"
    assert cluster.submitted == ["2"]


def test_the_same_command_goes_on_with_the_time_of_the_one_before(cluster: Cluster, tmp_path: Path) -> None:
    before = f"export {BEGAN}=2026-01-01\nthis script"
    detached(cluster, before)
    cluster.codes = {"1": OUT_OF_TIME}
    one, _ = following(tmp_path)
    assert one.run() == []
    assert cluster.submitted == ["2"]
    assert jobs.of_run(tmp_path, "2").submitted() == before


def when(one: Following, words: str, act: Callable[[], None]) -> None:
    """Have something happen once a note holds ``words``."""
    note = one.show.note

    def noted(text: str) -> None:
        note(text)
        if words in text:
            act()

    one.show.note = noted


@pytest.mark.parametrize("code", [1, 2])
def test_a_bad_node_ends_no_job_that_works(cluster: Cluster, tmp_path: Path, code: int) -> None:
    cluster.codes = {"1": None, **dict.fromkeys("23456789", code)}
    one, notes = following(tmp_path, 2)
    when(one, "no other job", lambda: cluster.codes.update({"1": 0}))
    assert one.run() == []
    assert cluster.submitted == (["1", "2"] if code == 2 else ["1", "2", "3"])
    assert cluster.seen["1"].state == "COMPLETED"
    assert any("no other job" in note for note in notes)


@pytest.mark.parametrize("code", [1, 2])
def test_jobs_that_all_fail_are_given_up(cluster: Cluster, tmp_path: Path, code: int) -> None:
    cluster.codes = dict.fromkeys("123456789", code)
    if code == 2:
        assert following(tmp_path, 2)[0].run() == ["bench ended with exit code 2 in job 1"]
    else:
        with pytest.raises(GivesUp, match="2 jobs in a row"):
            following(tmp_path, 2)[0].run()


def test_results_of_other_jobs_do_not_hide_a_bad_node(cluster: Cluster, tmp_path: Path) -> None:
    cluster.codes = {"1": None, **dict.fromkeys("23456789", 1)}
    one, _ = following(tmp_path, 2)
    folder = tmp_path / "attempts" / "ddp"

    def measured() -> None:
        (folder / f"b{len(cluster.submitted)}").mkdir(parents=True)
        (folder / f"b{len(cluster.submitted)}" / "result.json").write_text("{}")

    when(one, "is submitted", measured)
    when(one, "no other job", lambda: cluster.codes.update({"1": 0}))
    assert one.run() == []
    assert cluster.submitted == ["1", "2", "3"]


def test_a_silent_controller_does_not_hide_why_slurm_refuses(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detached(cluster, "this script", JobStatus("PENDING", "InvalidQOS"))

    def away(_: object) -> None:
        raise ControllerUnavailable("Socket timed out")

    monkeypatch.setattr(client, "cancel", away)
    with pytest.raises(NeverRuns, match="InvalidQOS"):
        following(tmp_path)[0].run()
    assert jobs.of_run(tmp_path, "1").job_end() == JobEnd(state="CANCELLED", asked=True)


def test_when_all_is_measured_nobody_waits_for_jobs_that_have_not_begun(cluster: Cluster, tmp_path: Path) -> None:
    detached(cluster, "this script")
    for script in ("this script", "another"):
        detached(cluster, script, JobStatus("PENDING", "Priority"))
    one, _ = following(tmp_path, 2, lambda: cluster.seen["1"].state == "COMPLETED")
    when(one, "job 2 is not needed", lambda: cluster.seen.update({"3": RUNNING}))
    assert one.run() == []
    assert cluster.submitted == []
    assert {number: seen.state for number, seen in cluster.seen.items()} == {
        "1": "COMPLETED",
        "2": "CANCELLED",
        "3": "COMPLETED",
    }


def test_a_job_by_hand_that_measures_all_is_followed_by_no_other(cluster: Cluster, tmp_path: Path) -> None:
    detached(cluster, None)
    assert following(tmp_path, 1, lambda: True)[0].run() == []
    assert cluster.submitted == []
