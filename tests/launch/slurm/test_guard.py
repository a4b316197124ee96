"""What watches over a job beside bench: it beats whatever Slurm and the file system do. Slurm is made up here."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.launch.slurm import client, guard, node
from bench.launch.slurm.client import JobStatus
from bench.records.slurm import JOB
from bench.store import jobs
from bench.store.jobs import JobEnd, JobFolder


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A job in which bench runs until the guard ends it."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(JOB, "")  # the guard sets it
    monkeypatch.setattr(guard, "BEAT_S", 0.01)
    monkeypatch.setattr(guard, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(guard.signal, "signal", lambda *_: None)
    popen = guard.subprocess.Popen
    monkeypatch.setattr(guard.subprocess, "Popen", lambda _, **how: popen(["sleep", "600"], **how))
    return jobs.of_run(tmp_path, "7")


def beats(job: JobFolder, more: int) -> bool:
    """Whether the guard beats so many times more, in a time that would do for hundreds."""
    first, until_s = int(job.alive() or 0), time.monotonic() + 30
    while int(job.alive() or 0) < first + more:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def test_a_guard_beats_while_slurm_does_not_answer_and_ends_with_its_job(
    tmp_path: Path, job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    beaten: list[bool] = []

    def look(_: object) -> dict[str, JobStatus]:
        beaten.append(beats(job, 5))
        return {"7": JobStatus("NODE_FAIL")}

    monkeypatch.setattr(client, "look", look)
    assert guard.main(tmp_path, []) == 128 + 15
    assert beaten == [True]


def away_once(then: Callable[..., object]) -> Callable[..., object]:
    calls: list[object] = []

    def call(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        return then(*arguments)

    return call


def test_a_file_system_that_is_away_for_a_moment_ends_no_guard(
    tmp_path: Path, job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "look", lambda _: {})
    answers = [None, None, None, JobEnd(state="NODE_FAIL")]  # the second one is not read
    monkeypatch.setattr(JobFolder, "job_end", away_once(lambda _: answers.pop(0) if len(answers) > 1 else answers[0]))
    guard.main(tmp_path, [])
    assert len(answers) == 1


def test_a_file_system_that_is_away_for_a_moment_ends_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.of_run(tmp_path, "7")
    monkeypatch.setattr(node.spool, "content", away_once(lambda _: None))
    assert [node._must_end(tmp_path, job) for _ in range(2)] == [False, False]
    monkeypatch.undo()
    job.set_job_end(JobEnd(state="NODE_FAIL"))
    assert node._must_end(tmp_path, job)


def test_ranks_on_a_cpu_see_no_gpu_and_gloo_has_its_interface_whatever_srun_has_made_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, device in ((None, "cpu"), ("0,1", "cpu"), ("0,1", "cuda")):
        monkeypatch.setenv("DS_ACCELERATOR", device)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if given:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        node._set_variables("127.0.0.1")
        visible = "" if device == "cpu" else given
        assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["GLOO_SOCKET_IFNAME"]) == (visible, "lo")
