"""The search over batch for one cell: does what `bench.search` asks for, until it has a verdict."""

from collections.abc import Callable, Container, Iterator, Sequence
from statistics import fmean

from bench import backends
from bench.records.base import Device
from bench.records.cell import Attempt, Cell, Walk
from bench.records.figures import CAPACITY, CAPACITY_SHARE, PEAK_ALLOCATED
from bench.records.machine import Hardware
from bench.records.outcome import Failed, Ok, Oom, Result, Scripted
from bench.records.plan import CellPlan
from bench.records.rank_outcome import Footprint, Memory, RankOk, Walked
from bench.records.verdict import Goal, Probe, Stopped, Verdict
from bench.search import Observation, Prior, Scout, Try, next_step, rate_error
from bench.sweep.priors import off
from bench.sweep.sweep import Sweep


def search_cell(sweep: Sweep, plan: CellPlan) -> None:
    """Search the batch of one cell; store and show the verdict."""
    CellSearch(sweep, plan).run()


class CellSearch:
    """The search of one cell in a sweep. Its verdict is stored beside the cell's attempts."""

    def __init__(self, sweep: Sweep, plan: CellPlan) -> None:
        self.sweep, self.plan, self.cell = sweep, plan, plan.cell
        self.goal, self.store, self.progress = sweep.goal.of(plan.cell), sweep.store, sweep.progress
        self.stale = False
        """Whether other sources made some of the cell's stored results: then its walk is theirs, too."""

    def run(self) -> None:
        if backends.forbids(self.cell, self.sweep.machine.hardware.device):
            attempt = Attempt(cell=self.cell, batch_per_rank=self.goal.granularity)
            self.sweep.attempt(self.plan, attempt)  # stores why it is skipped
            return
        earlier = self._own()
        stored = [result for result in earlier if not self.sweep.reuse.wants_again(result)]
        self.stale = any(map(self.sweep.reuse.is_stale, earlier))
        walked = [] if self.stale else self.store.walked(self.cell)
        walk = None if self.cell.script or self._is_given_up(Walk(cell=self.cell, batches_per_rank=())) else self._walk
        found = search(self.goal, self._start(), stored, walked, walk, self._attempt, self._prior)
        needs_bytes = None
        if isinstance(found, Verdict):
            self._set_aside_replaced(found.answers)
            needs_bytes = self._needs_bytes() if found.max_batch_per_rank is None else None
        elif self.stale:
            self._set_aside_replaced()
        probe = Probe(cell=self.cell, axes=self.plan.axes, goal=self.goal, found=found, needs_bytes=needs_bytes)
        self.store.finish_probe(probe)
        self.progress.verdict(self.plan.label, found, needs_bytes)

    def _walk(self, batches: tuple[int, ...]) -> list[Walked]:
        listed = [*map(str, batches)] if len(batches) <= 6 else [*map(str, batches[:3]), f"... up to {batches[-1]}"]
        self.progress.probing(self.plan.label, f"walking {', '.join(listed)} in one process")
        self.sweep.share.check_time()
        self.sweep.share.check_claim(self.cell.slug)
        walk = Walk(cell=self.cell, batches_per_rank=batches)
        self.sweep.launch(walk, self.store.begin(walk).resolve())
        return self.store.walked(self.cell)

    def _is_given_up(self, one: Attempt | Walk) -> bool:
        """Whether it was lost with its machine, and once more when it was tried again: maybe it is the cause."""
        return len(self.store.lost(one)) > 1

    def _attempt(self, batch: int, full: bool, why: str) -> Result:
        self.progress.probing(self.plan.label, f"batch {batch}: {why}")
        short = not full and (
            self.cell.script is None or self.cell.script.is_observed or self.cell.script.uses("steps")
        )
        attempt = Attempt(cell=self.cell, batch_per_rank=batch, short=short)
        return self.sweep.attempt(self.plan, attempt)

    def _prior(self) -> Prior | None:
        """The plan, moved as far as peaks of the nearest cell before this one are off theirs: libraries are alike."""
        priors = self.sweep.priors
        if priors is None or self.cell.script or (prior := priors.of(self.cell)) is None:
            return None
        for cell in self._before():
            if (other := priors.of(cell)) is not None:
                seen = filter(None, map(observation, self.store.of_cell(cell)))
                return prior.raised(off(other, seen) or 0.0)
        return prior

    def _before(self) -> Iterator[Cell]:
        """The cells before this one that have been searched, the nearest first."""
        cells = [plan.cell for plan in self.sweep.plans]
        for cell in reversed(cells[: cells.index(self.cell)]):
            probe = self.store.probe(cell)
            if probe is not None and isinstance(probe.found, Verdict):
                yield cell

    def _start(self) -> int | None:
        """The max of the nearest cell before this one, where the search begins."""
        probe = next(map(self.store.probe, self._before()), None)
        return probe.found.max_batch_per_rank if probe and isinstance(probe.found, Verdict) else None

    def _own(self) -> list[Result]:
        """The stored attempts of searches: repeated launches of their answers change no verdict."""
        return [result for result in self.store.of_cell(self.cell) if result.attempt.launch == 1]

    def _set_aside_replaced(self, answers: Container[int] = ()) -> None:
        """On a rerun: the results of an earlier search at batches that this search did not measure again. Repeated
        launches of its answers are measured again later."""
        for result in self.store.of_cell(self.cell):
            batch, repeated = result.attempt.batch_per_rank, result.attempt.launch > 1
            if self.sweep.reuse.wants_again(result) and self.goal.tries(batch) and not (repeated and batch in answers):
                self.store.set_aside(result.attempt)

    def _needs_bytes(self) -> int | None:
        """Bytes that the smallest batch takes on a CPU without a limit; None when that cannot be tried."""
        if self.sweep.machine.hardware.device == "cuda" or self.cell.memory_limit_bytes is None or self.cell.script:
            return None
        earlier = None if self.sweep.rerun or self.stale else self.store.probe(self.cell)
        if (
            earlier is not None
            and earlier.goal.granularity == self.goal.granularity
            and earlier.needs_bytes is not None
        ):
            return earlier.needs_bytes
        unlimited = self.cell.model_copy(update={"memory_limit_bytes": None})
        attempt = Attempt(cell=unlimited, batch_per_rank=self.goal.granularity, short=True)
        if self._is_given_up(attempt) or not self.sweep.share.takes(unlimited.slug):
            return None
        launched, _ = self.sweep.launch(attempt, self.store.begin(attempt).resolve())
        peaks = [rank.memory.peak_allocated_bytes for rank in launched.ranks if isinstance(rank, RankOk)]
        return max((peak for peak in peaks if peak is not None), default=None)


def search(
    goal: Goal,
    start: int | None,
    results: Sequence[Result],
    walked: Sequence[Walked],
    walk: Callable[[tuple[int, ...]], Sequence[Walked]] | None,
    attempt: Callable[[int, bool, str], Result],
    plan: Callable[[], Prior | None] = lambda: None,
) -> Verdict | Stopped:
    """Search until the answer is certified.

    Args:
        start: the max of another cell, where the search begins; it affects nothing else.
        results: the stored results of this cell.
        walked: the footprints of an earlier walk, if there was one.
        walk: runs a walk over these batches; None: attempts double the batch instead, as for a script, which cannot.
        attempt: measures one batch, at the full step count or not, and shows the reason.
        plan: what is expected of memory. It is asked for where a walk would begin, which a good plan replaces.
    """
    observations = [*hints(walked), *(seen for result in results if (seen := observation(result)))]
    scouts, prior, asked, ended = True, None, False, ""
    taken: dict[float, int] = {}
    while True:
        step = next_step(observations, goal, start=start, prior=prior, scouts=scouts)
        if isinstance(step, Verdict):
            why = step.why.replace("the largest batch allowed", "the largest batch tried") if ended else step.why
            return step.model_copy(update={"why": why + ended})
        if isinstance(step, Scout) and not asked:
            prior, asked = plan(), True
            continue
        if isinstance(step, Scout) and walk is not None:
            footprints = list(hints(walk(step.batches)))
            observations += footprints or [_ran_out_at_once(step.batches[0])]
            continue
        if isinstance(step, Scout):
            tries, scouts = [Try(batch=batch, full=False, why="doubling") for batch in step.batches], False
        else:
            tries = [step]
        for one in tries:
            result = attempt(one.batch, one.full, one.why)
            seen = observation(result)
            if seen is None:
                # A script whose samples suffice for too few steps of so large a batch: what it can do is below.
                below = [each.batch for each in observations if each.fresh and each.outcome == "ok"]
                if _ended_early(result) and (known := [batch for batch in below if batch < one.batch]):
                    goal = goal.model_copy(update={"max_batch": max(known)})
                    ended = f"; batch {one.batch} was not measured: {_why(result)}"
                    break
                return Stopped(reason=f"batch {one.batch} failed, without a sign that memory was short: {_why(result)}")
            if (each := _per_forward(result)) and taken.setdefault(each, one.batch) != one.batch:
                reason = (
                    f"the script ignores its batch: {each:g} samples per forward at {taken[each]} and at {one.batch}"
                )
                return Stopped(reason=reason)
            observations.append(seen)
            if seen.outcome == "oom":
                break


def _ended_early(result: Result) -> bool:
    return isinstance(result.outcome, Failed) and result.outcome.fault == "ended"


def _per_forward(result: Result) -> float | None:
    """The samples that an observed script's model took each time; None where that is not known."""
    seen = result.outcome.ranks[0].observed if isinstance(result.outcome, Ok) else None
    return seen.samples / seen.forwards if seen and seen.samples and seen.forwards else None


def _why(result: Result) -> str:
    """The reason of an outcome. A crash under a memory limit may be for memory; it does not prove it."""
    reason: str = getattr(result.outcome, "reason", result.outcome.kind)
    crashed = isinstance(result.outcome, Failed) and "SIGSEGV" in reason
    if not crashed or result.attempt.cell.memory_limit_bytes is None:
        return reason
    return f"{reason}; native code can crash this way when allocation fails; retry with a larger memory limit"


def observation(result: Result) -> Observation | None:
    """Memory and speed of a stored result; None unless it is a measurement or out of memory."""
    attempt, outcome = result.attempt, result.outcome
    if isinstance(outcome, Scripted):
        return _stated(outcome, attempt, result.machine.hardware.device)
    if isinstance(outcome, Ok):
        return _observation(
            attempt.batch_per_rank,
            [rank.memory for rank in outcome.ranks],
            outcome.samples_per_step(attempt) / max(map(_step_s, outcome.ranks)),
            fresh=True,
            full=not attempt.short,
            error=rate_error(max(outcome.ranks, key=_step_s).step_times_s),
        ).model_copy(update=_seen_by(outcome.ranks))
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


def _seen_by(ranks: Sequence[RankOk]) -> dict[str, object]:
    """What an attempt saw of the samples, for the certificate."""
    sizes = ranks[0].sizes
    grown = [rank.grew_at for rank in ranks if rank.grew_at and not (sizes and sizes.largest_batch)]
    longest = [rank.tokens.longest for rank in ranks if rank.tokens and rank.tokens.longest]
    return {
        "sizes": sizes,
        "steps": len(ranks[0].step_times_s),
        "longest": max(longest, default=None),
        "grew_at": max(grown, default=None),
    }


def _stated(outcome: Scripted, attempt: Attempt, device: Device) -> Observation:
    """What a script says. On a GPU, the memory that it held is unknown without the reserved peak."""
    step_s = max(outcome.step_time_s_per_rank, default=None)
    held, capacity, share = outcome.held_bytes(device), outcome.of(CAPACITY), outcome.of(CAPACITY_SHARE)
    if held is None and capacity and share:
        held = share * capacity
    return Observation(
        batch=attempt.batch_per_rank,
        outcome="ok",
        fresh=True,
        peak_bytes=None if held is None else round(outcome.of(PEAK_ALLOCATED) or held),
        capacity_bytes=round(capacity or 1),
        samples_per_s=outcome.samples_per_s_global or (attempt.batch_global / step_s if step_s else None),
        reserved_bytes=None if held is None else round(held),
        full=not attempt.short,
    )


def hints(walked: Sequence[Walked]) -> Iterator[Observation]:
    """The footprints of a walk, without the memory that the process kept from earlier batches.

    A walk that returns to its first batch shows how much that is in total; each batch is assumed to keep the same.
    """
    for marks in zip(*(walk.footprints for walk in walked), strict=False):
        batch, memories = marks[0].batch_per_rank, [mark.memory for mark in marks]
        index = walked[0].footprints.index(marks[0])
        if index and batch == walked[0].footprints[0].batch_per_rank:
            return
        kept_bytes = round(_kept_bytes(walked[_fullest(memories)].footprints) * index)
        rate = sum(mark.samples for mark in marks) / max(mark.step_time_s for mark in marks)
        yield _observation(batch, memories, rate, fresh=False, full=False, kept_bytes=kept_bytes)


def _kept_bytes(footprints: Sequence[Footprint]) -> float:
    """Per batch of the walk."""
    first, last = footprints[0], footprints[-1]
    before, after = first.memory.used_bytes, last.memory.used_bytes
    if len(footprints) < 3 or first.batch_per_rank != last.batch_per_rank or before is None or after is None:
        return 0
    return max(0, after - before) / (len(footprints) - 1)


def _observation(
    batch: int,
    memories: Sequence[Memory],
    rate: float,
    *,
    fresh: bool,
    full: bool,
    kept_bytes: int = 0,
    error: float | None = None,
) -> Observation:
    """Over all ranks: peak and capacity of the fullest rank, the largest share that any rank held, all retries."""
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
        error=error,
        reserved_bytes=None if fullest.peak_reserved_bytes is None else round(held * fullest.capacity_bytes),
        alloc_retries=sum(memory.alloc_retries for memory in memories),
        full=full,
    )


def _ran_out_at_once(batch: int) -> Observation:
    return Observation(batch=batch, outcome="oom", fresh=False, peak_bytes=None, capacity_bytes=1, samples_per_s=None)


def _fullest(memories: Sequence[Memory]) -> int:
    """The rank that uses the largest share of its own capacity. Ranks differ: other programs may use their devices."""
    return max(range(len(memories)), key=lambda rank: (memories[rank].used_bytes or 0) / memories[rank].capacity_bytes)


def _step_s(rank: RankOk) -> float:
    return fmean(rank.step_times_s)
