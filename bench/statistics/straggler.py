"""Which rank makes the others wait, by how much, and in which phase. Pure arithmetic on raw samples.

A straggler costs more than `SHARE` of the median step: its own work exceeds that of every other rank by that much. Each
of two rules may name it, each by chance with a probability of at most `CHANCE` for all ranks and phases together, if
steps are independent.

*By its size*, from `FEWEST_SIZED` steps on: Student's t puts the mean excess of the whole step above `SHARE` of the
step. This finds a large cost in few steps. On two ranks of a shared machine, planted stragglers that cost 15 to 90 % of
the step were named in all windows of 5 steps of 26 attempts (not in a 27th, beside other work). None was named in the
360 windows of 60 attempts without one.

*By counting*, from `FEWEST` steps on: the rank is late, by more than `SHARE` of the step, in at least `USUAL` of the
steps, in the whole step or in one and the same phase. If no rank were slower than another, each of R ranks would be
late with a probability of at most 1/R: binomial tail, Bonferroni. It uses no variance, so a few disturbed steps and the
noise of other phases hide no straggler.

*Why a step must be late by a share.* Steps that follow each other are not independent: other work on the machine slows
the same rank by some percent for many steps. 100 attempts without a straggler, measured on two ranks of a shared
machine, have 4,120 windows of 10 steps. In 92 of them, the rank that costs more has the most own work in every step;
in one, it is late in every step. Of their 3,120 windows of 20 steps, no rank is late in 17. Other work that shares a
core with one rank for the whole window slows this rank, and is reported, too.

*What counting misses.* Two ranks with seven known phases need all of 11 steps, or 18 of 20. With noise of 2 % on each
rank, a rank that is 10 % slower is named in about half of windows of 11 steps, in 84 % of 20 and in nearly all of 30
(simulated). Two ranks that are equally slow hide each other. The more ranks there are, the more their noise hides.

*What it costs.* The median over steps of the straggler's own work minus the largest of the other ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, comb
from statistics import fmean, median

from bench.statistics.intervals import mean_interval

SHARE = 0.05
"""Share of a step that a straggler must cost."""
USUAL = 0.75
"""Share of the steps in which a straggler must be late, however many there are."""
CHANCE = Fraction(1, 100)
"""Probability with which chance alone may name a rank that is like the others."""
FEWEST_SIZED = 3
"""Steps without which no rank is named by the size of its cost."""
FEWEST = 10
"""Steps without which none is named by counting, however many ranks there are: other work may slow one for a second."""
ENOUGH = 20
"""Steps to ask for: two disturbed ones of these hide no straggler of two ranks."""

RankWork = Mapping[str, Sequence[float]]
"""One rank's own work: seconds of each step, by phase."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that makes the others wait."""

    rank: int
    phase: str
    """Where the largest part of the cost comes from; if the step as a whole is late too rarely, what is late most
    often."""
    cost_s: float
    """Of the whole step or, if that is late too rarely, of ``phase``."""
    share: float
    """``cost_s`` as a share of the step."""
    n_late: int
    """Steps in which it is late: as a whole or, if these are too few, in ``phase``."""
    n_steps: int


def straggler(ranks: Sequence[RankWork], steps_s: Sequence[float]) -> Straggler | None:
    """The rank that the others wait for, if there is one.

    Args:
        ranks: by number, each with the same phases and steps. At least two.
        steps_s: how long each of these steps takes.
    """
    own_s = [[sum(parts) for parts in zip(*work.values(), strict=True)] for work in ranks]
    rank = max(range(len(ranks)), key=lambda rank: median(_excess_s(rank, own_s)))
    enough = needed(len(steps_s), len(ranks), n_series(len(ranks[0])))
    whole_s, step_s = _excess_s(rank, own_s), median(steps_s)
    cost_s = median(whole_s)
    if cost_s <= SHARE * step_s:
        return None
    late = _late(whole_s, step_s)
    if _is_large(whole_s, step_s, len(ranks)) or (enough is not None and late >= enough):
        parts_s = _parts_s(rank, ranks, own_s)
        phase = max(parts_s, key=parts_s.__getitem__)
    else:  # the noise of other phases may hide a phase that is late in nearly every step
        phases_s = {phase: _excess_s(rank, [work[phase] for work in ranks]) for phase in ranks[0]}
        phase = max(phases_s, key=lambda phase: (_late(phases_s[phase], step_s), median(phases_s[phase])))
        late, cost_s = _late(phases_s[phase], step_s), median(phases_s[phase])
        if enough is None or late < enough:
            return None
    return Straggler(rank=rank, phase=phase, cost_s=cost_s, share=cost_s / step_s, n_late=late, n_steps=len(steps_s))


@cache
def needed(n_steps: int, n_ranks: int, n_series: int) -> int | None:
    """In how many steps one of at least two ranks must be late, where ``n_series`` of each are looked at.

    None if even all are too few.
    """
    if n_steps < FEWEST:
        return None
    ways, least = 0, None  # of n_ranks**n_steps; whole numbers, because powers of so many steps fit no float
    most = CHANCE * n_ranks**n_steps / (n_ranks * n_series)
    for n in range(n_steps, 0, -1):
        ways += comb(n_steps, n) * (n_ranks - 1) ** (n_steps - n)
        if ways > most:
            break
        least = n
    return None if least is None else max(least, ceil(USUAL * n_steps))


def n_series(n_phases: int) -> int:
    """Each phase, and the whole step where that is not the only phase."""
    return n_phases + (n_phases > 1)


def _parts_s(rank: int, ranks: Sequence[RankWork], own_s: Sequence[Sequence[float]]) -> dict[str, float]:
    """By how much the rank's work exceeds that of the rank next to it in the whole step: by phase, means of steps."""
    others = [number for number in range(len(ranks)) if number != rank]
    nearest = [max(others, key=lambda number: own_s[number][step]) for step in range(len(own_s[rank]))]
    return {
        phase: fmean(
            work - ranks[other][phase][step] for step, (work, other) in enumerate(zip(works, nearest, strict=True))
        )
        for phase, works in ranks[rank].items()
    }


def _is_large(excess_s: Sequence[float], step_s: float, n_ranks: int) -> bool:
    interval = mean_interval(excess_s, confidence=1 - 2 * float(CHANCE) / n_ranks)  # of which only one end counts
    return interval is not None and interval[0] > SHARE * step_s


def _late(excess_s: Sequence[float], step_s: float) -> int:
    return sum(excess > SHARE * step_s for excess in excess_s)


def _excess_s(rank: int, own_s: Sequence[Sequence[float]]) -> list[float]:
    """By how much the rank's work exceeds that of every other rank, in each step; negative where it does not."""
    others = [work for number, work in enumerate(own_s) if number != rank]
    return [work - max(rest) for work, *rest in zip(own_s[rank], *others, strict=True)]
