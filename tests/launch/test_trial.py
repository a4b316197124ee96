"""The trial of the devices, with ranks on a CPU."""

import os

import pytest

from bench.launch.trial import Trial, trial
from bench.records.machine import Hardware

TWO_RANKS = Hardware(device="cpu", devices=2, cores=2, memory_bytes=2**30)


def test_ranks_compute_and_reduce() -> None:
    assert trial(TWO_RANKS, os.environ).error is None


def test_a_rank_that_leaves_no_word_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.launch.trial.sys.executable", "/bin/false")
    assert trial(TWO_RANKS, os.environ) == Trial(None, "rank 0 ended with exit code 1")
