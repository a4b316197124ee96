"""Which rank a step waits for: every phase over ranks, own work apart from waiting, and the straggler. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.statistics.straggler import ENOUGH, FEWEST_SIZED, Straggler, n_series, needed, straggler
from bench.units import counted, ms, percent


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
class Gate:
    """What the phase window says about ranks that wait for each other."""

    phases: tuple[RankPhase, ...]
    """In the order of PHASE_NAMES, then the total."""
    known: tuple[str, ...]
    """Phases whose own work is known on every rank; a straggler in another one is not seen."""
    straggler: Straggler | None
    unknown: str | None
    """Why no rank could be named even if there were a straggler; None if one could."""
    counts: bool
    """Whether there are enough steps to name a straggler of any size."""

    @property
    def words(self) -> str:
        """Which rank gates the step, and by how much."""
        if self.unknown:
            return f"n/a ({self.unknown})"
        if self.straggler is None:
            where = "" if len(self.known) == len(PHASE_NAMES) else f" in {', '.join(self.known)}"
            return f"no single rank{where}" + ("" if self.counts else f"; a small cost needs phase_steps={ENOUGH}")
        return f"rank {self.straggler.rank}, by {ms(self.straggler.cost_s)} ms in {self.straggler.phase}"


def gate(ranks: Sequence[RankOk]) -> Gate | None:
    """None without a phase window on every rank, and for a single rank."""
    if len(ranks) < 2 or not all(rank.n_phase_steps for rank in ranks):
        return None
    known = [phase for phase in PHASE_NAMES if all(phase in rank.own_work_s for rank in ranks)]
    n_steps = ranks[0].n_phase_steps
    unknown = None
    if not known:
        unknown = "own work not recorded"
    elif n_steps < FEWEST_SIZED:
        unknown = f"needs measure.phase_steps={ENOUGH}"
    steps_s = [max(times) for times in zip(*(rank.phase_times_s["total"] for rank in ranks), strict=True)]
    found = None if unknown else straggler([{name: rank.own_work_s[name] for name in known} for rank in ranks], steps_s)
    return Gate(
        phases=tuple(
            RankPhase(
                name=name,
                time_s=_spread([fmean(rank.phase_times_s[name]) for rank in ranks]),
                own_s=_own([_own_s(rank, name, known) for rank in ranks]),
            )
            for name in (*PHASE_NAMES, "total")
        ),
        known=tuple(known),
        straggler=found,
        unknown=unknown,
        counts=bool(known) and needed(n_steps, len(ranks), n_series(len(known))) is not None,
    )


def sentence(gate: Gate, found: Straggler, name: str) -> str:
    """For *Rows to doubt*."""
    at_most = "" if len(gate.known) == len(PHASE_NAMES) else "at most "  # it may be ahead in another phase
    return (
        f"{name} is a straggler: the others wait {at_most}{ms(found.cost_s)} ms a step for it"
        f" ({percent(found.share)} of the step), most of all for its {found.phase}"
        f" (late in {found.n_late} of {counted(found.n_steps, 'phase step')})."
    )


def _own_s(rank: RankOk, name: str, known: Sequence[str]) -> float | None:
    if name == "total":
        return sum(fmean(rank.own_work_s[part]) for part in known) if len(known) == len(PHASE_NAMES) else None
    return fmean(rank.own_work_s[name]) if name in known else None


def _own(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return _spread(known) if len(known) == len(values) else None


def _spread(times_s: Sequence[float]) -> Spread:
    return Spread(min(times_s), median(times_s), max(times_s), times_s.index(max(times_s)))
