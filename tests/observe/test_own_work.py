"""A rank's own work in each phase, from its waits and the collectives that it issued."""

import pytest

from bench.observe.own_work import own_work

PHASES = {"forward": (0.0, 0.1), "bwd": (0.1, 0.3), "sync_gather": (0.3, 0.35)}


def test_waits_that_were_seen_are_no_work() -> None:
    """FSDP: each collective waits; the rank works before, between and after them."""
    waits = [(0.02, 0.05), (0.12, 0.18), (0.25, 0.27), (0.31, 0.35)]
    found = own_work(PHASES.items(), waits, issued=[start for start, _ in waits])
    assert found == pytest.approx({"forward": 0.07, "bwd": 0.12, "sync_gather": 0.01})


def test_ddp_works_until_its_last_bucket() -> None:
    """Buckets are on their way while backward goes on. Nobody sees the wait at its end, only the last one's start."""
    found = own_work(PHASES.items(), waits=[(0.31, 0.35)], issued=[0.15, 0.2, 0.22, 0.31])
    assert found == pytest.approx({"forward": 0.1, "bwd": 0.12, "sync_gather": 0.01})


def test_work_after_a_wait_that_was_seen_counts() -> None:
    """DDP's buffers are broadcast at the start of forward, in a call that waits."""
    found = own_work(PHASES.items(), waits=[(0.0, 0.03), (0.31, 0.35)], issued=[0.01, 0.15, 0.22, 0.31])
    assert found == pytest.approx({"forward": 0.07, "bwd": 0.12, "sync_gather": 0.01})


def test_a_collective_that_is_awaited_in_a_later_phase_blocks_there() -> None:
    found = own_work(PHASES.items(), waits=[(0.28, 0.3), (0.31, 0.35)], issued=[0.05, 0.31])
    assert found == pytest.approx({"forward": 0.1, "bwd": 0.18, "sync_gather": 0.01})


def test_without_collectives_all_is_work() -> None:
    found = own_work(PHASES.items(), waits=[], issued=[])
    assert found == pytest.approx({"forward": 0.1, "bwd": 0.2, "sync_gather": 0.05})
