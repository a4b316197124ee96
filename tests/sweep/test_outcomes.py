"""The outcome of a launch, from its ranks and its log, on each device."""

from pathlib import Path

import pytest
from examples import CUDA_MACHINE, MACHINE, cell

from bench.launch.executor import LaunchResult
from bench.records.cell import Attempt
from bench.records.machine import Machine
from bench.records.outcome import Failed, Oom
from bench.records.rank_outcome import RankOom
from bench.records.script import Script, ScriptEnd
from bench.sweep.outcomes import outcome_of, script_outcome

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
def test_a_script_that_the_kernel_killed(machine: Machine, fault: str | None, tmp_path: Path) -> None:
    attempt = Attempt(cell=cell("ddp", script=Script(command=("train", "{out}"))), batch_per_rank=2)
    end = ScriptEnd(how="killed by SIGKILL", signal="SIGKILL")
    outcome = script_outcome(end, "the kernel's out-of-memory killer", attempt, tmp_path, machine, print)
    assert fault_of(outcome) == fault
