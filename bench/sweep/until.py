"""Goes on launching after `measure.launches`, until comparisons are narrow enough or a bound is reached.

It stops by the width of intervals alone, never by which side is ahead: to stop at the first significant difference
would call equal cells different more often than the stated confidence.

Stopping by width still favors launches that happen to be alike, a little. In 4000 simulated pairs of equal cells with
normal launches, asked for 2 % and starting from three launches, 95 % intervals missed in 5.7 % of the pairs where the
scatter between launches is 1 %, and in 7.5 % where it is 2 %.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.errors import InputError
from bench.records.account import LAUNCH
from bench.records.cell import Attempt
from bench.records.outcome import KINDS, Result
from bench.records.phases import Stage
from bench.records.until import Ended, Until, Width
from bench.sweep import turns
from bench.sweep.sweep import Sweep
from bench.units import counted, duration, percent

AUTO = "measure.launches: auto"
AUTO_HALF_WIDTH = 0.02
AUTO_SHARE = 0.25
"""Of the time of the first launches."""
SHORT_S = 20.0
"""What decides a short run may take so long, even if that is more than the share."""
MOST_LAUNCHES = 30
"""Of one cell at one batch without a budget, unless more are listed. The interval of 30 launches is a third of that of
5."""
MOST_WITHIN_BUDGET = 1000
"""With a budget, which bounds them itself."""
MOST_FAILED = 3
"""A cell that failed so often at one batch is not launched again."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What `bench run --until` or `measure.launches: auto` asks for."""

    half_width: float
    """A share: 0.02 asks for intervals of at most 2 % to each side."""
    budget_s: float | None = None
    """Seconds after `measure.launches`, in all jobs of one command; None: no limit. A launch that has begun is
    finished."""
    widths: Callable[[Sequence[Result]], Sequence[Width]]
    """The comparisons of these results, each once."""
    auto: bool = False
    """Whether `measure.launches: auto` asks for it. A resumed run then goes on with what is left of the budget."""
    clock: Callable[[], float] = time.monotonic

    @property
    def name(self) -> str:
        return AUTO if self.auto else "--until"

    @property
    def most_launches(self) -> int:
        """Of one cell at one batch."""
        return MOST_LAUNCHES if self.budget_s is None else MOST_WITHIN_BUDGET

    def wide(self, widths: Sequence[Width]) -> list[Width]:
        """What is wider than asked, the widest first, and the unknown before all others."""
        found = [one for one in widths if one.half_width is None or one.half_width > self.half_width]
        return sorted(found, key=lambda one: (one.half_width is not None, -(one.half_width or 0)))


def auto_budget_s(results: Sequence[Result], tasks: Sequence[Sequence[tuple[Attempt, Attempt]]]) -> float | None:
    """Seconds for further launches: a share of those of the first ones; or if `SHORT_S` is enough for it, what three
    launches of both sides of each task's first pair take. None: not even one of them fits."""
    first = {one.attempt.slug: one for one in results if one.attempt.launch == 1}
    once = [_again_s(first[of.slug]) + _again_s(first[against.slug]) for pairs in tasks for of, against in pairs[:1]]
    least_s, budget_s = 2 * sum(once), AUTO_SHARE * sum(one.wall_s for one in first.values())
    if budget_s < least_s <= SHORT_S:
        return least_s
    return budget_s if once and budget_s >= min(once) else None


def _again_s(result: Result) -> float:
    """How long another launch takes: without what happened once, the build of extensions and the start of servers."""
    parts_s = result.account.parts_s if result.account else {}
    once = (Stage.COMPILE, LAUNCH) if result.isolation == "fork" else (Stage.COMPILE,)
    return result.wall_s - sum(parts_s.get(part, 0.0) for part in once)


def go_on(sweep: Sweep, target: Target) -> Until:
    """Launch both sides of every wide comparison once a round, the widest first, until a bound is reached.

    The record is stored before the first launch and at the end. With --until, a resumed run spends a new budget; a job
    of Slurm goes on with that of the jobs before it.

    Raises:
        InputError: another process measures some of the cells.
    """
    check_alone(sweep, target.name)
    spent_s, launches = _spent_before(sweep, ever=target.auto)
    before = sweep.store.until()
    if target.auto and before is not None and before.auto:
        spent_s = max(spent_s, before.took_s)
    began_s = target.clock() - spent_s
    asked = Until(
        half_width=target.half_width, auto=target.auto, budget_s=target.budget_s, most_launches=target.most_launches
    )
    sweep.store.finish_until(asked)
    plans = {plan.cell.slug: plan for plan in sweep.plans}
    planned = sweep.planned()
    while True:
        results = sweep.results()
        widths = target.widths(results)
        wide = target.wide(widths)
        due = _next_round(wide, results, sweep.seed, target.most_launches)
        ended = _ended(widths, wide, due, target, target.clock() - began_s)
        if ended is not None:
            break
        sweep.progress.planned(planned + len(due), _why(widths, wide, target, target.clock() - began_s))
        for attempt in due:
            if _spent(target, target.clock() - began_s):
                sweep.progress.planned(planned, f"the budget of {duration(target.budget_s)} is spent")
                break
            sweep.attempt(plans[attempt.cell.slug], attempt)
            planned, launches = planned + 1, launches + 1
    known = [one.half_width for one in widths if one.half_width is not None]
    until = asked.model_copy(
        update={
            "ended": ended,
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "launches": launches,
            "took_s": target.clock() - began_s,
            "comparisons": len(widths),
            "wide": len(wide),
            "widest": max(known) if known and len(known) == len(widths) else None,
        }
    )
    if before is not None and until.model_copy(update={"ended_at": before.ended_at, "took_s": before.took_s}) == before:
        until = before  # nothing was added
    sweep.store.finish_until(until)
    return until


def is_alone(sweep: Sweep) -> bool:
    """Whether this process measures all cells."""
    return all(sweep.share.takes(plan.cell.slug) for plan in sweep.plans)


def check_alone(sweep: Sweep, asked: str) -> None:
    """Raises InputError where another process measures some of the cells, all of which ``asked`` needs."""
    if not is_alone(sweep):
        raise InputError(
            "cannot start: another job measures some of these cells",
            where=asked,
            fix=f"wait for it, or end it with `bench cancel {sweep.store.root}`",
        )


def spent_before_s(sweep: Sweep) -> float:
    """Seconds of all attempts that earlier jobs of this command have made."""
    results = (one for plan in sweep.plans for one in sweep.results_of(plan))
    return sum(one.wall_s for one in results if _made_since(one, sweep.share.began))


def _made_since(result: Result, began: datetime | None) -> bool:
    """Whether the command that began then has made a result."""
    return began is not None and datetime.fromisoformat(result.started_at) >= began


def _spent_before(sweep: Sweep, *, ever: bool) -> tuple[float, int]:
    """Seconds and launches that earlier jobs of this command have added, or ``ever`` any command."""
    further = (one for plan in sweep.plans for one in sweep.results_of(plan) if one.attempt.launch > plan.launches)
    added = [one.wall_s for one in further if ever or _made_since(one, sweep.share.began)]
    return sum(added), len(added)


def _ended(
    widths: Sequence[Width], wide: Sequence[Width], due: Sequence[Attempt], target: Target, took_s: float
) -> Ended | None:
    if not wide:
        return "narrow" if widths else "no_pairs"
    if not due:
        return "launches"
    return "budget" if _spent(target, took_s) else None


def _spent(target: Target, took_s: float) -> bool:
    return target.budget_s is not None and took_s >= target.budget_s


def _next_round(wide: Sequence[Width], results: Sequence[Result], seed: int, most_launches: int) -> list[Attempt]:
    """The next launch of each side of these comparisons, in their order; the two sides of one are shuffled."""
    launched: dict[str, list[Result]] = {}
    for result in results:
        launched.setdefault(result.attempt.model_copy(update={"launch": 1}).slug, []).append(result)
    due: dict[str, Attempt] = {}
    for one in wide:
        for attempt in turns.shuffled([one.of, one.against], seed, sum(map(len, launched.values()))):
            before = launched.get(attempt.slug, [])
            failed = sum(not KINDS[result.outcome.kind].measured for result in before)
            if len(before) < most_launches and failed < MOST_FAILED:
                number = max((result.attempt.launch for result in before), default=0) + 1
                due.setdefault(attempt.slug, attempt.model_copy(update={"launch": number}))
    return list(due.values())


def _why(widths: Sequence[Width], wide: Sequence[Width], target: Target, took_s: float) -> str:
    widest = wide[0].half_width
    which = "not known yet" if widest is None else percent(widest)
    comparisons = f"{len(wide)} of {counted(len(widths), 'comparison')} wider than {percent(target.half_width)}"
    left = "" if target.budget_s is None else f"; for at most {duration(max(0.0, target.budget_s - took_s))}"
    what = "launching again what decides" if target.auto else "going on"
    return f"{what}: {comparisons}, the widest {which}{left}"
