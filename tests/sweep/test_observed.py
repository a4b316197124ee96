"""What the ranks of an observed script left -> its outcome."""

import os
from pathlib import Path

import pytest
from examples import MACHINE, cell, rank

from bench.launch.executor import LaunchResult
from bench.records.cell import Attempt, Cell
from bench.records.observed import Observed
from bench.records.outcome import Failed, Hang, Ok, Oom, Outcome
from bench.records.rank_outcome import RankError, RankOk, RankOutcome
from bench.records.script import Script, ScriptEnd
from bench.sweep.observed import observed_outcome

COMMAND = ("torchrun", "train.py", "{batch}", "{backend}")


def seen(number: int, backend: str = "ddp", **given: object) -> RankOk:
    observed = Observed.model_validate({"samples": 24, "forwards": 3, "optimizer": "AdamW", **given})
    changes = {"observed": observed, "phase_times_s": {}, "losses": (), "warmup_losses": ()}
    return rank(number, backend=backend).model_copy(update=changes)


def error(number: int, words: str) -> RankError:
    return RankError(rank=number, phase="measure", error=words, traceback="", at=1.0, place="step (train.py:3)")


def outcome(
    folder: Path,
    *ranks: RankOutcome,
    of: Cell | None = None,
    end: ScriptEnd | None = None,
    killer: str | None = None,
    notes: list[str] | None = None,
) -> Outcome:
    of = of or cell("ddp", script=Script(command=COMMAND), workload="train.py", options={})
    end = end or ScriptEnd(how=None)
    launched = LaunchResult(ranks=ranks, isolation="script", cancelled=end.cancelled, script=end)
    attempt = Attempt(cell=of, batch_per_rank=8)
    return observed_outcome(
        launched, end, killer, attempt, folder, MACHINE, (notes if notes is not None else []).append
    )


def test_all_ranks_measured_are_ok_whatever_their_launcher_did(tmp_path: Path) -> None:
    notes: list[str] = []
    end = ScriptEnd(how="exit code 1", log="ValueError: late")
    assert isinstance(outcome(tmp_path, seen(0), seen(1), end=end, notes=notes), Ok)
    assert notes == []
    assert isinstance(outcome(tmp_path, seen(0), seen(1, samples=9), notes=notes), Ok)
    assert notes == [
        "batch 8, rank 1: its model took 3 samples per forward, and the matrix says 8; figures count what was seen"
    ]


def test_a_rank_that_never_steps_is_named_unless_another_one_failed_before(tmp_path: Path) -> None:
    """It fails as the measured one ends, and its error says nothing."""
    for file in ("rank0.json", "rank0.trainer.1"):
        (tmp_path / file).touch()
    os.utime(tmp_path / "rank0.json", (2.0, 2.0))
    early, late = error(1, "no such file"), error(1, "Connection closed by peer").model_copy(update={"at": 3.0})
    for failed, words in ((early, "no such file"), (late, "rank 1 made no optimizer step")):
        found = outcome(tmp_path, seen(0), failed)
        assert isinstance(found, Failed)
        assert words in found.reason
    (tmp_path / "rank1.trainer.2").touch()
    found = outcome(tmp_path, seen(0), late)
    assert isinstance(found, Failed)
    assert "Connection closed by peer" in found.reason


def test_another_world_or_sharding_than_asked_for_has_failed(tmp_path: Path) -> None:
    script = Script(command=COMMAND)
    four = cell("ddp", script=script, workload="train.py", options={}, num_processes=4)
    found = outcome(tmp_path, seen(0), seen(1), of=four)
    assert isinstance(found, Failed)
    assert "trained in 2 processes, and the matrix says 4" in found.reason
    fsdp = cell("fsdp", script=script, workload="train.py", options={})
    found = outcome(tmp_path, seen(0), seen(1), of=fsdp)
    assert (found.fault, found.reason) == (
        "regime",
        "the script ran otherwise: fsdp shards with FULL_SHARD, observed none",
    )
    assert isinstance(outcome(tmp_path, seen(0, "fsdp"), seen(1, "fsdp"), of=fsdp), Ok)


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_allocator"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9", None),
    ],
)
def test_an_error_for_memory_is_an_oom_of_its_rank(words: str, source: str | None, tmp_path: Path) -> None:
    found = outcome(tmp_path, error(1, words), end=ScriptEnd(how="exit code 1"))
    assert isinstance(found, Oom)
    assert (found.rank, found.phase) == (1, "measure")
    assert source in (None, found.source)


def test_the_rank_that_a_signal_ended_is_named(tmp_path: Path) -> None:
    lost = error(0, "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    end = ScriptEnd(how="killed by SIGKILL", signal="SIGKILL", rank=1)
    found = outcome(tmp_path, lost, end=end)
    assert (found.rank, found.fault) == (1, "killed")
    found = outcome(tmp_path, lost, end=end, killer="the kernel's OOM killer")
    assert (found.rank, found.source) == (1, "kernel")


def test_a_script_without_steps_and_one_with_too_few_say_so(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    assert isinstance(found, Failed)
    assert found.reason.startswith("bench saw no step in it")
    (tmp_path / "rank0.early").write_text('{"steps": 2, "warmup": 3, "restarts": 0}')
    found = outcome(tmp_path)
    assert isinstance(found, Failed)
    assert found.reason.startswith("the script ended after 2 steps, and 6 are needed, 3 of them to warm up")
    (tmp_path / "rank0.early").write_text('{"steps": 1, "warmup": 3, "restarts": 400}')
    found = outcome(tmp_path)
    assert isinstance(found, Failed)
    assert found.reason.startswith("its optimizers changed 400 times")


def test_silence_before_any_rank_was_seen_is_a_hang(tmp_path: Path) -> None:
    found = outcome(tmp_path, end=ScriptEnd(how=None, cancelled="no progress for 9 s", log="loading"))
    assert isinstance(found, Hang)
    assert "loading" in found.reason
