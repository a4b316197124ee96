"""The search over batch for one cell: does what `bench.search` asks for until there is a verdict."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from bench.records.machine import Hardware
from bench.records.outcome import Failed, Ok, Oom, Result
from bench.records.rank_outcome import Memory, RankOk
from bench.records.verdict import Goal, Stopped, Verdict
from bench.search import Observation, Scout, next_step
from bench.store.spool import Footprint, Walked


def search(
    goal: Goal,
    start: int | None,
    results: Sequence[Result],
    walked: Sequence[Walked],
    walk: Callable[[tuple[int, ...]], Sequence[Walked]],
    attempt: Callable[[int, bool, str], Result],
) -> Verdict | Stopped:
    """Search until the answer is certified.

    Args:
        start: another cell's max: where to begin, and nothing else.
        results: what is stored of this cell.
        walked: the footprints of an earlier walk, if there was one.
        walk: makes a walk over these batches.
        attempt: measures one batch, at the full step count or not, for a reason in words.
    """
    observations = [*hints(walked), *(seen for result in results if (seen := observation(result)))]
    while True:
        step = next_step(observations, goal, start=start)
        if isinstance(step, Verdict):
            return step
        if isinstance(step, Scout):
            found = list(hints(walk(step.batches)))
            observations += found or [_ran_out_at_once(step.batches[0])]
            continue
        result = attempt(step.batch, step.full, step.why)
        seen = observation(result)
        if seen is None:
            return Stopped(reason=f"batch {step.batch} neither fitted nor ran out of memory: {_why(result)}")
        observations.append(seen)


def _why(result: Result) -> str:
    """What happened, and that a crash may have been for memory all the same, which it does not prove."""
    reason: str = getattr(result.outcome, "reason", result.outcome.kind)
    crashed = isinstance(result.outcome, Failed) and "SIGSEGV" in reason
    if not crashed or result.attempt.cell.memory_limit_bytes is None:
        return reason
    return f"{reason}; native code may crash so where it gets no memory: a larger memory limit tells"


def observation(result: Result) -> Observation | None:
    """What a stored result says of memory and speed; None when it is neither a measurement nor out of memory."""
    attempt, outcome = result.attempt, result.outcome
    if isinstance(outcome, Ok):
        return _observation(
            attempt.batch_per_rank,
            [rank.memory for rank in outcome.ranks],
            attempt.batch_per_rank * len(outcome.ranks) / max(map(_step_s, outcome.ranks)),
            fresh=True,
            full=not attempt.short,
        )
    if isinstance(outcome, Oom):
        hardware = result.machine.hardware
        assert isinstance(hardware, Hardware)  # bench ran it
        return Observation(
            batch=attempt.batch_per_rank,
            outcome="oom",
            fresh=True,
            peak_bytes=None,
            capacity_bytes=attempt.cell.memory_limit_bytes or hardware.memory_bytes,
            samples_per_s=None,
            full=not attempt.short,
        )
    return None


def hints(walked: Sequence[Walked]) -> Iterator[Observation]:
    """The footprints of a walk, less what the process had kept of the batches before each.

    A walk that came back to its first batch shows how much that is in all; it is shared out evenly over the way.
    """
    for marks in zip(*(walk.footprints for walk in walked), strict=False):
        batch, memories = marks[0].batch_per_rank, [mark.memory for mark in marks]
        index = walked[0].footprints.index(marks[0])
        if index and batch == walked[0].footprints[0].batch_per_rank:
            return
        kept_bytes = round(_kept_bytes(walked[_fullest(memories)].footprints) * index)
        rate = batch * len(marks) / max(mark.step_time_s for mark in marks)
        yield _observation(batch, memories, rate, fresh=False, full=False, kept_bytes=kept_bytes)


def _kept_bytes(footprints: Sequence[Footprint]) -> float:
    """Per batch of the way."""
    first, last = footprints[0], footprints[-1]
    before, after = first.memory.used_bytes, last.memory.used_bytes
    if len(footprints) < 3 or first.batch_per_rank != last.batch_per_rank or before is None or after is None:
        return 0
    return max(0, after - before) / (len(footprints) - 1)


def _observation(
    batch: int, memories: Sequence[Memory], rate: float, *, fresh: bool, full: bool, kept_bytes: int = 0
) -> Observation:
    """Of all ranks: the peak and the capacity of the fullest one, the largest share held by any, every retry."""
    fullest = memories[_fullest(memories)]
    used = fullest.used_bytes
    held = max((memory.held_bytes or 0) / memory.capacity_bytes for memory in memories)
    return Observation(
        batch=batch,
        outcome="ok",
        fresh=fresh,
        peak_bytes=None if used is None else used - kept_bytes,
        capacity_bytes=fullest.capacity_bytes,
        samples_per_s=rate,
        reserved_bytes=None if fullest.peak_reserved_bytes is None else round(held * fullest.capacity_bytes),
        alloc_retries=sum(memory.alloc_retries for memory in memories),
        full=full,
    )


def _ran_out_at_once(batch: int) -> Observation:
    return Observation(batch=batch, outcome="oom", fresh=False, peak_bytes=None, capacity_bytes=1, samples_per_s=None)


def _fullest(memories: Sequence[Memory]) -> int:
    """The rank that uses the largest share of its own capacity, which others on its device may have lessened."""
    return max(range(len(memories)), key=lambda rank: (memories[rank].used_bytes or 0) / memories[rank].capacity_bytes)


def _step_s(rank: RankOk) -> float:
    return fmean(rank.step_times_s)
