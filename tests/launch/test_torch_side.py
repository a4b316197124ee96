"""The processes that trace programs and try the devices, these with ranks on a CPU."""

import os
from pathlib import Path

import pytest
from examples import cell

from bench.launch.torch_side import Trial, traced, trial
from bench.records.machine import Hardware
from bench.records.program import Program
from bench.store import programs
from bench.store.programs import NotTraced

TWO_RANKS = Hardware(device="cpu", devices=2, cores=2, memory_bytes=2**30)
SMALL = {"preset": "tiny", "n_layers": 1, "vision_layers": 1}


def test_programs_are_traced_once_and_failures_say_why(tmp_path: Path) -> None:
    good, bad = (
        programs.request_of(cell(options=options), "cpu", (1, 2), {}, {})
        for options in (SMALL, {**SMALL, "branch_sync": "none"})
    )
    seen: list[object] = []
    found = traced([good, bad, good], None, tmp_path, seen.append)
    assert isinstance(found[good.key], Program)
    failed = found[bad.key]
    assert isinstance(failed, NotTraced)
    assert "meta" in failed.reason
    assert len(seen) == 2
    assert traced([good], None, tmp_path, seen.append) == {good.key: found[good.key]}
    assert len(seen) == 2  # it was kept


def test_a_process_that_dies_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.launch.torch_side.sys.executable", "/bin/false")
    request = programs.request_of(cell(options=SMALL), "cpu", (1, 2), {}, {})
    died = traced([request], None, tmp_path, lambda _: None)[request.key]
    assert isinstance(died, NotTraced)
    assert "exit code 1" in died.reason


def test_a_trace_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr("bench.launch.torch_side.sys.executable", str(slow))
    request = programs.request_of(cell(options=SMALL), "cpu", (1, 2), {}, {})
    late = traced([request], None, tmp_path, lambda _: None, patience_s=0.3)[request.key]
    assert late == NotTraced(reason="it took more than 0.3 s")


def test_ranks_compute_and_reduce() -> None:
    assert trial(TWO_RANKS, os.environ).error is None


def test_a_rank_that_leaves_no_word_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.launch.torch_side.sys.executable", "/bin/false")
    assert trial(TWO_RANKS, os.environ) == Trial(None, "rank 0 ended with exit code 1")
