"""`bench run --best`: measures what `bench.search.best` asks for, until the fastest setting of each task is certain."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from bench import backends
from bench.errors import InputError
from bench.records.best import Best, Ended, Fastest, Ruled
from bench.records.cell import Attempt
from bench.records.outcome import KINDS, Result
from bench.records.plan import CellPlan
from bench.records.verdict import Goal, Stopped
from bench.search.best import CONFIDENCE, Answer, Arm, Done, Look, Next, beaten, next_look
from bench.sweep.probe import CellSearch, observation
from bench.sweep.sweep import Sweep
from bench.sweep.until import MOST_FAILED, check_alone, spent_before_s
from bench.units import counted, rate

Setting = tuple[str, int | None]
"""A cell's id and a batch; None: the batch that its search finds."""
MOST_SETTINGS = 2000
"""The arithmetic of more would take longer than attempts."""
_END: dict[Ended, str] = {
    "certified": "the fastest setting is certain enough",
    "spent": "what may be the fastest was launched as often as is allowed",
    "budget": "the budget is spent",
}


class Planned(NamedTuple):
    """What a plan says of a setting."""

    fits: bool
    """False: it cannot fit, even if the plan is as much too high as plans have been."""
    expected: float | None
    """Of its throughput."""
    at_most: float | None
    """Samples per second by the lower bound of its step."""


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """What `bench run --best` asks for."""

    margin: float
    """A share: 0.02 ends when no other setting can be 2 % faster."""
    frugal: bool = True
    """Whether a wider margin is enough after a fifth of the attempts of the matrix: nobody asked for this one."""
    budget_s: float | None
    """Seconds after which no further attempt begins; None: no limit."""
    free: Collection[str]
    """Axes that are free to choose. The others are requirements: each combination of them has its own answer."""
    spoiled: Callable[[Sequence[Result]], Collection[str]]
    """Of these results, the slugs of attempts that nobody should train with: invalid, or thrashing."""
    planned: Callable[[], Mapping[Setting, Planned]] = dict
    """Called once, before anything is measured."""
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Candidate:
    """An arm: a cell at one batch, or at the batch that its search finds."""

    plan: CellPlan
    batch: int | None
    arm: Arm
    fits: bool = True
    """False: its plan rules it out."""


@dataclass
class Seen:
    """What is known of the candidates."""

    looks: list[Look] = field(default_factory=list)
    out: dict[int, Ruled] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    """The batch of each candidate whose batch is known."""


def find_best(sweep: Sweep, hunt: Hunt) -> Best:
    """Measure until every task's fastest setting is certain. Each attempt is stored as soon as it is made, and the
    record at the end: an interrupted run goes on where it was.

    Raises:
        InputError: there are too many settings, or another process measures some of the cells.
    """
    check_alone(sweep, "--best")
    candidates = candidates_of(sweep.plans, hunt.free)
    if len(candidates) > MOST_SETTINGS:
        raise InputError(
            f"{len(candidates)} settings are too many", where="--best", allowed=f"{MOST_SETTINGS}", fix="use --select"
        )
    asked = Best(
        margin=hunt.margin,
        frugal=hunt.frugal,
        budget_s=hunt.budget_s,
        confidence=CONFIDENCE,
        of=len(candidates),
        cells=tuple(dict.fromkeys(one.plan.cell.id for one in candidates)),
    )
    sweep.store.finish_best(asked)
    _skip_forbidden(sweep)
    candidates = _with_plans(candidates, hunt.planned())
    arms, began_s, said = [one.arm for one in candidates], hunt.clock() - spent_before_s(sweep), ""
    spent = False
    while True:
        seen = look_at(sweep, candidates, hunt)
        step = next_look(arms, seen.looks, frozenset(seen.out), hunt.margin, frugal=hunt.frugal)
        spent = hunt.budget_s is not None and hunt.clock() - began_s >= hunt.budget_s
        if isinstance(step, Done) or spent:
            break
        if (words := _progress(step, candidates, seen)) != said:
            made = len(seen.looks) + len(seen.out)
            sweep.progress.planned(made + max(1, min(step.open, len(arms) // 4 - made)), words)
            said = words
        _measure(sweep, candidates[step.arm], step, seen.batches.get(step.arm))
    if isinstance(step, Next):
        step = next_look(arms, seen.looks, frozenset(seen.out), hunt.margin, frugal=hunt.frugal, stop=True)
        assert isinstance(step, Done)
    best = _record(asked, sweep, candidates, seen, step, "budget" if spent else None)
    if said:
        sweep.progress.planned(0, f"ended: {_END[best.ended or 'spent']}")  # of 0: as many as were made
    sweep.store.finish_best(best)
    return best


def candidates_of(plans: Sequence[CellPlan], free: Collection[str]) -> list[Candidate]:
    """All settings of these cells that may be an answer."""
    rows = [
        (plan, batch, {**{name: json.dumps(value) for name, value in plan.axes.items()}, "batch": str(batch)})
        for plan in plans
        for batch in (*plan.batches, *([None] if plan.search else []))
    ]
    names = list(dict.fromkeys(name for _, _, levels in rows for name in levels))
    varied = [name for name in names if len({levels.get(name) for _, _, levels in rows}) > 1]
    needed = [name for name in varied if name not in free and name != "batch"]
    ranks = {plan.cell.num_processes for plan in plans}
    found = []
    for plan, batch, levels in rows:
        task = [f"{name}={levels[name].strip(chr(34))}" for name in needed if name in levels]
        task += [f"num_processes={plan.cell.num_processes}"] if len(ranks) > 1 else []
        arm = Arm(levels={name: levels.get(name, "") for name in varied}, task=" ".join(task), search=batch is None)
        found.append(Candidate(plan, batch, arm))
    return found


def _with_plans(candidates: Sequence[Candidate], planned: Mapping[Setting, Planned]) -> list[Candidate]:
    """A plan by which nothing of a task fits rules nothing out: attempts then show it."""
    unknown = Planned(fits=True, expected=None, at_most=None)
    plans = [planned.get((one.plan.cell.id, one.batch), unknown) for one in candidates]
    fit = {one.arm.task for one, plan in zip(candidates, plans, strict=True) if plan.fits}
    return [
        replace(
            one,
            arm=replace(one.arm, expected=plan.expected, at_most=plan.at_most or math.inf),
            fits=plan.fits or one.arm.task not in fit,
        )
        for one, plan in zip(candidates, plans, strict=True)
    ]


def look_at(sweep: Sweep, candidates: Sequence[Candidate], hunt: Hunt) -> Seen:
    """What is stored of these candidates, without what other sources made."""
    seen, by_cell = Seen(), dict[str, list[Result]]()
    headroom = (sweep.goal if any(one.batch is None for one in candidates) else Goal()).headroom
    for one in candidates:
        if one.plan.cell.slug not in by_cell:
            stored = sweep.store.of_cell(one.plan.cell)
            by_cell[one.plan.cell.slug] = [result for result in stored if not sweep.reuse.wants_again(result)]
    spoiled = hunt.spoiled([result for results in by_cell.values() for result in results])
    for number, one in enumerate(candidates):
        _look(seen, number, one, by_cell[one.plan.cell.slug], sweep, headroom, spoiled)
    looked = {look.arm for look in seen.looks}
    for number, one in enumerate(candidates):
        if not one.fits and number not in looked:
            seen.out.setdefault(number, "plan")
    return seen


def _look(
    seen: Seen,
    number: int,
    one: Candidate,
    results: Sequence[Result],
    sweep: Sweep,
    headroom: float,
    spoiled: Collection[str],
) -> None:
    batch = one.batch
    if batch is None:
        smallest = [result for result in results if result.attempt.batch_per_rank == sweep.goal.granularity]
        _see(seen, number, [result for result in smallest if result.attempt.short], None, ())
        probe = sweep.store.probe(one.plan.cell)
        other_goal = probe is not None and probe.goal != sweep.goal.of(one.plan.cell)
        if probe is None or other_goal or sweep.search_is_stale(one.plan):
            if any(result.outcome.kind == "skipped" for result in results):
                seen.out[number] = "skipped"
            return
        if isinstance(probe.found, Stopped):
            seen.out[number] = "failed"
            return
        if probe.found.advised is None:
            seen.out[number] = "memory" if probe.found.best is None else "headroom"
            return
        batch = probe.found.advised.batch
    elif any(result.outcome.kind == "oom" and result.attempt.batch_per_rank < batch for result in results):
        seen.out[number] = "memory"
        return
    of_batch = [result for result in results if result.attempt.batch_per_rank == batch]
    if one.batch is None:
        of_batch = [result for result in of_batch if not result.attempt.short]
    _see(seen, number, of_batch, headroom, spoiled)
    seen.batches[number] = batch


def _see(seen: Seen, number: int, results: Sequence[Result], headroom: float | None, spoiled: Collection[str]) -> None:
    """The looks of one candidate, and whether it is out."""
    ok = [result for result in results if KINDS[result.outcome.kind].measured]
    for result in ok:
        found = observation(result)
        if found is None or not found.samples_per_s:
            continue
        seen.looks.append(Look(number, found.samples_per_s, not result.attempt.short))
        if headroom is not None and (found.footprint or 0.0) > headroom:
            seen.out[number] = "headroom"
        if result.attempt.model_copy(update={"launch": 1}).slug in spoiled:
            seen.out[number] = "invalid"
    if failed := [result for result in results if result not in ok]:
        kinds = {result.outcome.kind for result in failed}
        if "oom" in kinds:
            seen.out[number] = "memory"
        elif len(failed) >= MOST_FAILED or not any(not result.attempt.short for result in ok):
            seen.out[number] = "skipped" if kinds == {"skipped"} else "failed"


def _skip_forbidden(sweep: Sweep) -> None:
    """Store why cells are skipped; nothing is launched for them."""
    for plan in sweep.plans:
        if backends.forbids(plan.cell, sweep.machine.hardware.device):
            for batch in plan.batches or (sweep.goal.granularity,):
                sweep.attempt(plan, Attempt(cell=plan.cell, batch_per_rank=batch))


def _measure(sweep: Sweep, one: Candidate, step: Next, batch: int | None) -> None:
    cell, script = one.plan.cell, one.plan.cell.script
    full = step.full or (script is not None and not script.uses("steps"))
    if one.batch is None and full and batch is None:
        CellSearch(sweep, one.plan).run()
        return
    at = one.batch or (batch if full and batch is not None else sweep.goal.granularity)
    attempt = Attempt(cell=cell, batch_per_rank=at, short=not full)
    while full and sweep.reuse.stored(attempt) is not None:
        attempt = attempt.model_copy(update={"launch": attempt.launch + 1})
    sweep.attempt(one.plan, attempt)


def _progress(step: Next, candidates: Sequence[Candidate], seen: Seen) -> str:
    full = [look for look in seen.looks if look.full and look.arm not in seen.out]
    top = max(full, key=lambda look: look.rate, default=None)
    fastest = f"; fastest launch: {_name(candidates[top.arm], seen)}, {rate(top.rate)} samples/s" if top else ""
    still = f": {step.open} of {counted(len(candidates), 'setting')} may be the fastest" if step.open else ""
    return f"{step.why}{still}{fastest}"


def _name(one: Candidate, seen: Seen, number: int | None = None) -> str:
    batch = one.batch if one.batch is not None or number is None else seen.batches.get(number)
    return f"{one.plan.label}, batch {'probe' if batch is None else batch}"


def _record(
    asked: Best, sweep: Sweep, candidates: Sequence[Candidate], seen: Seen, done: Done, ended: Ended | None
) -> Best:
    made = [result for plan in sweep.plans for result in sweep.store.of_cell(plan.cell)]
    launched = [result for result in made if result.outcome.kind != "skipped"]
    tasks = dict.fromkeys(one.arm.task for one in candidates)
    if ended is None:
        ended = "certified" if done.certified else "spent"
    return asked.model_copy(
        update={
            "ended": ended,
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "attempts": len(launched),
            "took_s": sum(result.wall_s for result in launched),
            "answers": tuple(_fastest(answer, candidates, seen) for answer in done.answers),
            "unanswered": tuple(task for task in tasks if task not in {answer.task for answer in done.answers}),
        }
    )


def _fastest(answer: Answer, candidates: Sequence[Candidate], seen: Seen) -> Fastest:
    one = candidates[answer.arm]
    batch = seen.batches[answer.arm]
    of_task = [number for number, other in enumerate(candidates) if other.arm.task == answer.task]
    full = {look.arm for look in seen.looks if look.full}
    short = {look.arm for look in seen.looks} - full
    slower = beaten([other.arm for other in candidates], seen.looks, seen.out)
    ruled: Counter[Ruled] = Counter()
    for number in of_task:
        if number != answer.arm:
            by: Ruled = "launched" if number in full else "short" if number in short else "others"
            by = "bound" if number in slower else "open" if number in answer.open else by
            ruled[seen.out.get(number, by)] += 1
    return Fastest(
        task=answer.task,
        cell=one.plan.cell.id,
        name=_name(one, seen, answer.arm),
        batch_per_rank=batch,
        within=answer.within,
        settings=len(of_task),
        ruled_out=dict(ruled),
    )
