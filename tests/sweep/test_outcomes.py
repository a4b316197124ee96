"""The outcome of a launch, from its ranks and its log, on each device."""

from pathlib import Path

import pytest
from examples import CUDA_MACHINE, MACHINE, cell

from bench.launch.executor import LaunchResult
from bench.records.cell import Attempt
from bench.records.machine import Machine
from bench.records.outcome import Failed, Oom
from bench.records.rank_outcome import RankKilled, RankOom
from bench.records.script import Script, ScriptEnd
from bench.sweep.outcomes import outcome_of, outcome_of_attempt, script_settings

MACHINES = pytest.mark.parametrize(("machine", "fault"), [(MACHINE, None), (CUDA_MACHINE, "host_memory")])


def fault_of(outcome: object) -> str | None:
    """The fault of a failure; None out of memory."""
    assert isinstance(outcome, Failed | Oom)
    return outcome.fault if isinstance(outcome, Failed) else None


@MACHINES
def test_a_rank_that_the_kernel_killed(machine: Machine, fault: str | None) -> None:
    killed = RankOom(rank=1, phase="setup", message="killed by SIGKILL", source="kernel", at=1.0)
    outcome = outcome_of(LaunchResult(ranks=[killed], isolation="fork"), cell("ddp"), machine.hardware)
    assert fault_of(outcome) == fault


@MACHINES
def test_a_script_that_the_kernel_killed(
    machine: Machine, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.oom_kill.killed_since", lambda _: "the kernel's out-of-memory killer")
    attempt = Attempt(cell=cell("ddp", script=Script(command=("train", "{out}"))), batch_per_rank=2)
    end = ScriptEnd(how="killed by SIGKILL", signal="SIGKILL")
    launched = LaunchResult(ranks=[], isolation="script", script=end)
    outcome = outcome_of_attempt(launched, {}, attempt, tmp_path, machine, "", print)
    assert fault_of(outcome) == fault


def test_the_global_batch_of_a_script_is_known() -> None:
    """Else rows of different ones were one task."""
    script = Script(command=("train", "{batch}", "{gas}"))
    assert "global_batch" in (script_settings(cell("ddp", script=script, train={"global_batch": 8})) or ())
    assert "global_batch" not in (script_settings(cell("ddp", script=script)) or ())


@pytest.mark.parametrize(
    ("signal", "words", "killer", "kind"),
    [
        ("SIGKILL", None, "the kernel's out-of-memory killer", "oom"),
        ("SIGKILL", None, None, "failed"),
        ("SIGABRT", "terminate called after throwing an instance of 'std::bad_alloc'\n", None, "oom"),
        ("SIGABRT", "a library aborts\n", None, "failed"),
    ],
)
def test_a_rank_of_an_own_launch_that_ends_for_memory(
    signal: str, words: str | None, killer: str | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.oom_kill.killed_since", lambda _: killer)
    ended = RankKilled(rank=0, phase="warmup", signal=signal, at=1.0, last_words=words)
    attempt = Attempt(cell=cell("single", num_processes=1), batch_per_rank=2)
    launched = LaunchResult(ranks=[ended], isolation="launch")
    assert outcome_of_attempt(launched, {}, attempt, tmp_path, MACHINE, "", print).kind == kind
