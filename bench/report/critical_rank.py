"""Which rank a step waits for: every phase over ranks, own work apart from waiting, and the straggler. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.records.phases import SHOWN_PHASES
from bench.records.rank_outcome import RankOk
from bench.statistics.straggler import ENOUGH, FEWEST_SIZED, Straggler, n_series, needed, straggler
from bench.units import ms


@dataclass(frozen=True)
class Spread:
    """Mean times over ranks."""

    min_s: float
    median_s: float
    max_s: float
    rank: int
    """Of the maximum."""


@dataclass(frozen=True, kw_only=True)
class RankPhase:
    """One phase over all ranks."""

    name: str
    time_s: Spread
    own_s: Spread | None
    """Without the time spent in collectives; None where that is unknown."""


@dataclass(frozen=True, kw_only=True)
class CriticalRank:
    """What the phase window says about ranks that wait for each other."""

    phases: tuple[RankPhase, ...]
    """In the order of SHOWN_PHASES, then the total."""
    known: tuple[str, ...]
    """Phases whose own work is known on every rank; a straggler in another one is not seen."""
    straggler: Straggler | None
    unknown: str | None
    """Why no rank could be named even if there were a straggler; None if one could."""
    late: Straggler | None
    """The rank for which the others may wait in their collectives on NCCL. Not seen on GPUs yet: no verdict."""
    counts: bool
    """Whether there are enough steps to name a straggler of any size."""

    @property
    def all_known(self) -> bool:
        return len(self.known) == len(self.phases) - 1  # the total

    @property
    def words(self) -> str:
        """Which rank is critical, and by how much."""
        if self.unknown:
            return f"n/a ({self.unknown})"
        if self.straggler is None:
            where = "" if self.all_known else f" in {', '.join(self.known)}"
            return f"no single rank{where}" + ("" if self.counts else f"; a small cost needs phase_steps={ENOUGH}")
        return f"rank {self.straggler.rank}, by {ms(self.straggler.cost_s)} ms in {self.straggler.phase}"


def critical_rank(ranks: Sequence[RankOk]) -> CriticalRank | None:
    """None without a phase window on every rank, and for a single rank."""
    if len(ranks) < 2 or not all(rank.n_phase_steps for rank in ranks):
        return None
    names = [phase for phase in SHOWN_PHASES if all(phase in rank.phase_times_s for rank in ranks)]
    known = [phase for phase in names if all(phase in rank.own_work_s for rank in ranks)]
    n_steps = ranks[0].n_phase_steps
    unknown = None
    if not known:
        unknown = "own work not recorded"
    elif n_steps < FEWEST_SIZED:
        unknown = f"needs measure.phase_steps={ENOUGH}"
    steps_s = [max(times) for times in zip(*(rank.phase_times_s["total"] for rank in ranks), strict=True)]
    found = None if unknown else straggler([{name: rank.own_work_s[name] for name in known} for rank in ranks], steps_s)
    with_own_s = (*known, "total") if known == names else known

    def own_s(rank: RankOk, name: str) -> float:
        return sum(fmean(rank.own_work_s[part]) for part in (known if name == "total" else [name]))

    return CriticalRank(
        phases=tuple(
            RankPhase(
                name=name,
                time_s=_spread([fmean(rank.phase_times_s[name]) for rank in ranks]),
                own_s=_spread([own_s(rank, name) for rank in ranks]) if name in with_own_s else None,
            )
            for name in (*names, "total")
        ),
        known=tuple(known),
        straggler=found,
        unknown=unknown,
        late=_late(ranks, steps_s),
        counts=bool(known) and needed(n_steps, len(ranks), n_series(len(known))) is not None,
    )


def _late(ranks: Sequence[RankOk], steps_s: Sequence[float]) -> Straggler | None:
    """By the time outside collectives on the device: the rank that comes last waits least, so its are the shortest."""
    if any(rank.collective_times_s is None for rank in ranks) or len(steps_s) < FEWEST_SIZED:
        return None
    outside = [
        {"step": [step_s - time_s for step_s, time_s in zip(steps_s, rank.collective_times_s or (), strict=True)]}
        for rank in ranks
    ]
    return straggler(outside, steps_s)


def _spread(times_s: Sequence[float]) -> Spread:
    return Spread(min(times_s), median(times_s), max(times_s), times_s.index(max(times_s)))
