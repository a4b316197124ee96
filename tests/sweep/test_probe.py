"""What a search makes of stored results and walks."""

import pytest
from examples import CUDA_MACHINE, ok, rank, result, vram, world

from bench.records.cell import Attempt
from bench.records.outcome import Failed, Result
from bench.records.rank_outcome import Footprint, Memory, Walked
from bench.records.verdict import Goal, Stopped, Verdict
from bench.search import Observation
from bench.sweep.probe import hints, observation, search

GIB = 2**30


def memory(allocated_gib: float, reserved_gib: float, capacity_gib: float, retries: int = 0) -> Memory:
    return vram(allocated_gib, reserved_gib, capacity_gib).model_copy(update={"alloc_retries": retries})


def seen(*memories: Memory) -> Observation:
    ranks = tuple(rank(number, memory=each) for number, each in enumerate(memories))
    return observation(result(world(*ranks), machine=CUDA_MACHINE))


def test_the_rank_that_is_fullest_by_its_own_capacity_decides() -> None:
    found = seen(memory(50, 52, 78), memory(50, 54, 55))
    assert (found.peak_bytes, found.capacity_bytes, found.reserved_bytes) == (50 * GIB, 55 * GIB, 54 * GIB)


def test_what_another_rank_holds_counts_and_so_does_each_retry() -> None:
    found = seen(memory(50, 60, 80, retries=1), memory(48, 79, 80, retries=2))
    assert found.peak_bytes == 50 * GIB
    assert found.reserved_bytes == 79 * GIB
    assert found.alloc_retries == 3


def test_a_walk_is_judged_by_its_fullest_rank_too() -> None:
    walks = [
        Walked(
            rank=number,
            footprints=tuple(
                Footprint(
                    batch_per_rank=batch,
                    memory=memory(10 * batch, 12 * batch, capacity),
                    step_time_s=0.1,
                    samples=4 * batch,
                )
                for batch in (1, 2)
            ),
        )
        for number, capacity in enumerate((80, 40))
    ]
    found = list(hints(walks))
    assert [(hint.batch, hint.capacity_bytes) for hint in found] == [(1, 40 * GIB), (2, 40 * GIB)]
    assert [hint.samples_per_s for hint in found] == [80, 160]  # of two ranks, with four micro-batches


def test_a_script_that_ends_early_at_a_large_batch_is_searched_below_it() -> None:
    tried: list[tuple[int, bool]] = []

    def attempt(batch: int, full: bool, _: str) -> Result:
        tried.append((batch, full))
        if batch > 8:
            return result(Failed(fault="ended", rank=None, phase=None, reason="it ended after 4 steps"), batch=batch)
        measured = ok((0.1 * batch**0.5,) * 12, (0.1 * batch**0.5,) * 12)
        return result(measured, batch=batch).model_copy(update={"attempt": at(batch, full)})

    def at(batch: int, full: bool) -> Attempt:
        return result(batch=batch).attempt.model_copy(update={"short": not full})

    found = search(Goal(max_batch=64), None, [], [], None, attempt)
    assert isinstance(found, Verdict), found
    assert (found.max_batch_per_rank, found.certificate, found.best and found.best.batch) == (8, "cap_fits", 8)
    assert found.why.endswith("; batch 16 was not measured: it ended after 4 steps")
    assert max(batch for batch, _ in tried) == 16
    none = search(Goal(max_batch=64), None, [], [], None, lambda batch, full, why: attempt(16, full, why))
    assert isinstance(none, Stopped)


@pytest.mark.parametrize(
    ("signal", "limit", "hinted"), [("SIGSEGV", 2**27, True), ("SIGSEGV", None, False), ("SIGKILL", 2**27, False)]
)
def test_a_crash_within_a_limit_may_have_been_for_memory(signal: str, limit: int | None, hinted: bool) -> None:
    crashed = Failed(fault="killed", rank=0, phase="warmup", reason=f"killed by {signal} in backward")
    stored = result(crashed, batch=1, memory_limit_bytes=limit)
    found = search(Goal(max_batch=2), None, [], [], lambda _: [], lambda *_: stored)
    assert isinstance(found, Stopped)
    assert f"failed, without a sign that memory was short: killed by {signal} in backward" in found.reason
    assert ("retry with a larger memory limit" in found.reason) == hinted
