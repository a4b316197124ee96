"""What `bench cancel` ends, and what a followed job leaves to its follower. Slurm is made up; tests/slurm has one."""

from pathlib import Path
from typing import Any

import pytest

from bench.cli.cancel import cancel
from bench.cli.cluster import Place
from bench.launch.slurm import client
from bench.launch.slurm.client import JobStatus
from bench.records.slurm import JOB
from bench.store import jobs
from bench.store.jobs import End, JobEnd


def test_a_job_that_lives_under_another_name_is_cancelled_and_an_ended_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {
        "6": JobStatus("RUNNING"),
        "7": JobStatus("RUNNING"),
        "8": JobStatus("NODE_FAIL"),
        "9": JobStatus("RUNNING"),
    }
    for number in seen:
        jobs.of_run(tmp_path, number).folder.mkdir(parents=True)
    jobs.of_run(tmp_path, "9").set_job_end(JobEnd(state="DONE"))
    jobs.of_run(tmp_path, "6").set_end(End(exit_code=0))  # bench has ended in nodes that the user still holds
    monkeypatch.setattr(client, "living", lambda _: [])
    monkeypatch.setattr(client, "look", lambda numbers: {number: seen[number] for number in numbers})
    monkeypatch.setattr(client, "cancel", lambda numbers: seen.update(dict.fromkeys(numbers, JobStatus("CANCELLED"))))
    cancel(tmp_path)
    assert [seen[number].state for number in "6789"] == ["RUNNING", "CANCELLED", "NODE_FAIL", "RUNNING"]
    assert jobs.of_run(tmp_path, "7").job_end() == JobEnd(state="CANCELLED", asked=True)
    assert jobs.of_run(tmp_path, "8").job_end() is None


@pytest.mark.parametrize(("launcher", "folder", "followed"), [("srun", "x", True), ("srun", "", False)])
def test_only_in_a_jobs_script_failed_attempts_do_not_count(
    monkeypatch: pytest.MonkeyPatch, launcher: Any, folder: str, followed: bool
) -> None:
    monkeypatch.setenv(JOB, folder)
    context: Any = None
    assert Place(context=context, launcher=launcher, jobs=1).is_followed() == followed
    assert not Place(context=context, launcher="local", jobs=1).is_followed()
