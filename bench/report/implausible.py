"""What looks wrong in the figures of one attempt: sentences for `doubts`. Pure."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from bench.records.figures import PEAK_ALLOCATED, PEAK_RESERVED
from bench.report.gate import sentence
from bench.report.rows import Measured, Rank, Sampled
from bench.units import counted, gib, ms, percent

PHASES_MISS_TOTAL = 0.02
RANKS_APART = 0.10
"""For imported figures. A step of bench ends in a gather, so the means of its ranks agree: see `gate`."""
WINDOWS_APART = 0.20
MEAN_ABOVE_MEDIAN = 0.15
STARVED = 0.10
"""Share of a step that the wait for data may take."""
LOSS_NOISE = 1e-3
"""Share by which equal losses may differ."""


class Sized(NamedTuple):
    """A sentence, and by which share the row's mean step may be off at most because of it."""

    reason: str
    share: float


def ranks_apart(measured: Measured) -> Iterator[Sized]:
    apart, times_s = measured.straggler_spread, measured.step_time_s_per_rank
    if apart is not None and apart > RANKS_APART:
        slowest, fastest = max(times_s), min(times_s)
        yield Sized(
            f"rank {times_s.index(slowest)}'s mean step ({ms(slowest)} ms) takes {percent(apart)}"
            f" longer than rank {times_s.index(fastest)}'s ({ms(fastest)} ms).",
            apart,
        )


def straggler(measured: Sampled) -> Iterator[Sized]:
    if measured.gate and (found := measured.gate.straggler):
        yield Sized(sentence(measured.gate, found, measured.ranks[found.rank].name), _without(found.share))


def phases_miss(measured: Measured) -> Iterator[str]:
    shares = {f"rank {rank.raw.rank}'s": rank.unaccounted_share for rank in _ranks(measured)}
    if not isinstance(measured, Sampled) and measured.phases:
        shares["its"] = measured.phases.unaccounted_share
    for whose, share in shares.items():
        if share is not None and abs(share) > PHASES_MISS_TOTAL:
            yield f"{whose} phases sum to {percent(abs(share))} {'short of' if share > 0 else 'beyond'} their total."


def reserved_below_allocated(measured: Measured) -> Iterator[str]:
    for rank in _ranks(measured):
        allocated, reserved = rank.raw.memory.peak_allocated_bytes, rank.raw.memory.peak_reserved_bytes
        if allocated is not None and reserved is not None and reserved < allocated:
            yield f"rank {rank.raw.rank} reserved {gib(reserved)} GiB, less than the {gib(allocated)} GiB it allocated."
    # Of imported figures, each of the two peaks is the worst rank's, so reserved is still the larger one.
    first, second = measured.of(PEAK_ALLOCATED), measured.of(PEAK_RESERVED)
    if not isinstance(measured, Sampled) and first is not None and second is not None and second < first:
        yield f"its peak reserved is {gib(second)} GiB, less than the {gib(first)} GiB allocated."


def starved(measured: Measured) -> Iterator[Sized]:
    """Steps that wait for data: the row tells about the loader, and not about the backend."""
    shares = {f"rank {rank.raw.rank}": rank.dataload_share for rank in _ranks(measured)}
    if not isinstance(measured, Sampled) and measured.phases:
        shares["a rank"] = measured.phases.share("dataload_wait")
    late = measured.gate.straggler if isinstance(measured, Sampled) and measured.gate else None
    if late and late.phase == "dataload_wait":
        del shares[f"rank {late.rank}"]  # `straggler` says so already
    known = {who: share for who, share in shares.items() if share is not None}
    who = max(known, key=lambda who: known[who], default=None)
    if who is not None and round(known[who], 3) > STARVED:  # as it is shown
        words = f"{who} waits for data during {percent(known[who])} of its step: the loader is too slow."
        yield Sized(words, _without(known[who]))


def mean_above_median(measured: Sampled) -> Iterator[Sized]:
    """Disturbed steps, or a warm-up that was too short."""
    step = measured.slowest.step
    above = step.mean_s / step.median_s - 1 if step.median_s else 0
    if above > MEAN_ABOVE_MEDIAN:
        yield Sized(
            f"{measured.slowest.name}'s mean step ({ms(step.mean_s)} ms) is {percent(above)} above its median"
            f" ({ms(step.median_s)} ms): a busy machine, or too short a warm-up.",
            above,
        )


def windows_disagree(launches: Sequence[Sampled]) -> Iterator[Sized]:
    """On average over the launches: that steps vary between them is in the interval already."""
    both = [(launch.slowest.step.mean_s, launch.total_s) for launch in launches if launch.total_s]
    if not both:
        return
    step_s, synchronized_s = map(fmean, zip(*both, strict=True))
    if abs(apart := synchronized_s / step_s - 1) > WINDOWS_APART:
        yield Sized(
            f"its two timing windows disagree by {percent(abs(apart))}"
            f" ({ms(step_s)} and {ms(synchronized_s)} ms a step): measure more steps.",
            max(synchronized_s / step_s, step_s / synchronized_s) - 1,
        )


def loss_not_finite(measured: Sampled) -> Iterator[str]:
    if not measured.finite:
        yield "the loss is not a finite number."


def compiled_meanwhile(measured: Sampled) -> Iterator[str]:
    if graphs := max(
        (rank.raw.compilation.graphs_while_measured for rank in measured.ranks if rank.raw.compilation), default=0
    ):
        yield f"torch.compile made {counted(graphs, 'graph')} while steps were measured: set more measure.warmup_steps."


def reduced_products(measured: Sampled) -> Iterator[str]:
    """A library or the workload may set torch's precision of float32 for the whole process."""
    for rank in measured.ranks[:1]:
        regime = rank.raw.regime
        if regime.float32_products and (regime.matmul_shares or {"float32": 1.0}).get("float32", 0.0) > 0.01:
            yield f"its float32 matrix products are computed as {regime.float32_products}."


def not_resumed(measured: Sampled) -> Iterator[str]:
    apart = max((rank.raw.checkpoint.apart for rank in measured.ranks if rank.raw.checkpoint), default=0.0)
    if apart > LOSS_NOISE:
        yield f"its checkpoint does not restore training: the losses after loading differ by {percent(apart)}."


def _without(share: float) -> float:
    """By which share a step is longer than without this share of it."""
    return share / (1 - share) if share < 1 else float("inf")


def _ranks(measured: Measured) -> tuple[Rank, ...]:
    return measured.ranks if isinstance(measured, Sampled) else ()
