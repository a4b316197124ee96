"""Sentences for `doubts`: what looks wrong in the figures of one attempt, what its steps leave out, and what disturbed
it, such as other processes, swapping, a throttled GPU or a full disk. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from bench.records.conditions import Conditions, GpuConditions
from bench.records.figures import PEAK_ALLOCATED, PEAK_RESERVED
from bench.records.rank_outcome import MUCH, Coverage
from bench.report.rows import Measured, Row, Sampled
from bench.units import GIB, amount, counted, gib, ms, percent, size

PHASES_MISS_TOTAL = 0.02
RANKS_APART = 0.10
"""For imported figures. A step of bench ends in a gather, so the means of its ranks agree: see `critical_rank`."""
WINDOWS_APART = 0.20
MEAN_ABOVE_MEDIAN = 0.15
STARVED = 0.10
"""Share of a step that the wait for data may take."""
LOSS_NOISE = 1e-3
"""Share by which equal losses may differ."""


OTHERS_CPU = 0.1
"""Share of all cores. Two ranks on two cores lose about the same share of their time."""
GPU_BUSY = 0.05
LOW_DISK_BYTES, LOW_DISK_SHARE = GIB, 0.02
SWAPPED_BYTES = 16 * 2**20
"""A kernel swaps less than this in its routine work."""
CLOCKS_LOW = 0.8
OTHERS_GPU_BYTES = GIB
"""A driver or a desktop uses less. Inside a container, the processes that use the memory are invisible."""
EXPECTED = frozenset({"power cap"})
"""A busy large GPU reaches its power cap: this is recorded, and is no reason for doubt."""


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


def straggler(row: Row) -> Iterator[Sized]:
    """In any launch: the phases that the report shows are those of one of them."""
    lost, sentences = dict[int, float](), list[str]()
    for launch in row.each:
        measured = launch.sampled
        if measured and measured.critical_rank and (found := measured.critical_rank.straggler):
            lost[launch.launch] = found.share
            # It may be ahead in a phase whose own work is not known.
            at_most = "" if measured.critical_rank.all_known else "at most "
            sentences.append(
                f"{of_launch(row, launch)}{measured.ranks[found.rank].name} is a straggler: the others wait"
                f" {at_most}{ms(found.cost_s)} ms a step for it ({percent(found.share)} of the step), most of all for"
                f" its {found.phase} (late in {found.n_late} of {counted(found.n_steps, 'phase step')})."
            )
    return together(sentences, _lost(row, lost))


def of_launch(row: Row, launch: Row) -> str:
    """Begins a sentence on one of several launches."""
    return f"launch {launch.launch}: " if row.launches else ""


def together(sentences: Iterable[str], share: float) -> Iterator[Sized]:
    """Sentences on several launches of a row, which together may put it off by ``share``."""
    for reason in sentences:
        yield Sized(reason, share)
        share = 0.0


def _lost(row: Row, lost: Mapping[int, float]) -> float:
    """By which share the row's mean step is longer than without these shares of the steps of its launches."""
    if not lost:
        return 0.0
    all_s = {launch.launch: 1 / launch.rate for launch in row.each if launch.measured}
    return _without(math.fsum(all_s[number] * share for number, share in lost.items()) / math.fsum(all_s.values()))


def moved_by(row: Row, launches: Sequence[Row]) -> float:
    """By which share these launches move the row's mean step; infinite, if the others are not the larger part."""
    ours_s = [1 / launch.rate for launch in launches if launch.measured]
    all_s = [1 / launch.rate for launch in row.each if launch.measured]
    if len(all_s) <= 2 * len(ours_s):
        return math.inf
    mean_s, without_s = fmean(all_s), (math.fsum(all_s) - math.fsum(ours_s)) / (len(all_s) - len(ours_s))
    return max(mean_s / without_s, without_s / mean_s) - 1


def may_be_late(measured: Sampled) -> Iterator[str]:
    critical = measured.critical_rank
    if critical and (found := critical.late) and not critical.straggler:
        yield (
            f"{measured.ranks[found.rank].name} may be late: its collectives are the shortest, so the others may wait"
            f" {ms(found.cost_s)} ms a step ({percent(found.share)}) in them. NCCL's flight recorder says so, which no"
            " planted straggler has confirmed."
        )


def phases_miss(measured: Measured) -> Iterator[str]:
    windows = {f"rank {rank.raw.rank}'s": rank.phases for rank in measured.ranks}
    if not measured.ranks and measured.phases:
        windows["its"] = measured.phases
    for whose, window in windows.items():
        share = window.unaccounted_share if window else None
        if share is not None and abs(share) > PHASES_MISS_TOTAL:
            yield f"{whose} phases sum to {percent(abs(share))} {'short of' if share > 0 else 'beyond'} their total."


def reserved_below_allocated(measured: Measured) -> Iterator[str]:
    for rank in measured.ranks:
        allocated, reserved = rank.raw.memory.peak_allocated_bytes, rank.raw.memory.peak_reserved_bytes
        if allocated is not None and reserved is not None and reserved < allocated:
            yield f"rank {rank.raw.rank} reserved {gib(reserved)} GiB, less than the {gib(allocated)} GiB it allocated."
    # Of imported figures, each of the two peaks is the worst rank's, so reserved is still the larger one.
    first, second = measured.of(PEAK_ALLOCATED), measured.of(PEAK_RESERVED)
    if not measured.ranks and first is not None and second is not None and second < first:
        yield f"its peak reserved is {gib(second)} GiB, less than the {gib(first)} GiB allocated."


def starved(measured: Measured) -> Iterator[Sized]:
    """Steps that wait for data: the row tells about the loader, and not about the backend."""
    windows = {f"rank {rank.raw.rank}": rank.phases for rank in measured.ranks}
    if not measured.ranks and measured.phases:
        windows["a rank"] = measured.phases
    late = measured.critical_rank.straggler if isinstance(measured, Sampled) and measured.critical_rank else None
    if late and late.phase == "dataload_wait":
        del windows[f"rank {late.rank}"]  # `straggler` says so already
    shares = {who: window.share("dataload_wait") for who, window in windows.items() if window}
    known = {who: share for who, share in shares.items() if share is not None}
    who = max(known, key=lambda who: known[who], default=None)
    if who is not None and round(known[who], 3) > STARVED:  # as it is shown
        words = f"{who} waits for data during {percent(known[who])} of its step: the loader is too slow."
        yield Sized(words, _without(known[who]))


def mean_above_median(row: Row) -> Iterator[Sized]:
    """Disturbed steps, a warm-up that was too short, or work that only some steps of a script do. Names the launch in
    which it is worst."""
    sampled = [(launch, launch.sampled.slowest) for launch in row.each if launch.sampled]
    lost = {launch.launch: 1 - rank.step.median_s / rank.step.mean_s for launch, rank in sampled if rank.step.median_s}
    lost = {number: share for number, share in lost.items() if _without(share) > MEAN_ABOVE_MEDIAN}
    if not lost:
        return
    launch, rank = max(sampled, key=lambda pair: lost.get(pair[0].launch, 0.0))
    above = _without(lost[launch.launch])
    script = rank.raw.observed is not None
    why = "some steps do more, such as an evaluation or a checkpoint; or " if script else ""
    whole = "; let measure.steps cover whole periods of such work" if script else ""
    others = f" {len(lost)} of {len(sampled)} launches are like this." if len(lost) > 1 else ""
    yield Sized(
        f"{of_launch(row, launch)}{rank.name}'s mean step ({ms(rank.step.mean_s)} ms) is {percent(above)} above its"
        f" median ({ms(rank.step.mean_s / (1 + above))} ms): {why}a busy machine, or too short a warm-up{whole}."
        f"{others}",
        _lost(row, lost),
    )


def windows_disagree(measured: Sampled) -> Iterator[Sized]:
    """On average over the launches: that steps vary between them is in the interval already."""
    if measured.windows_s is None:
        return
    step_s, synchronized_s = measured.windows_s
    if abs(apart := synchronized_s / step_s - 1) > WINDOWS_APART:
        why = "" if apart > 0 else "timers make no step shorter, so steps differ as much by themselves: "
        yield Sized(
            f"with phase timers, steps took {percent(abs(apart))} {'more' if apart > 0 else 'less'}"
            f" ({ms(synchronized_s)} ms, and {ms(step_s)} ms without): {why}measure more steps.",
            max(synchronized_s / step_s, step_s / synchronized_s) - 1,
        )


def skipped_steps(row: Row, *, every: bool) -> Iterator[Sized]:
    """Such a step takes no time in the optimizer. If ``every`` step of a launch is one, nothing was trained."""
    lost, sentences = dict[int, float](), list[str]()
    for launch in row.each:
        rank = launch.sampled.slowest.raw if launch.sampled else None
        seen = rank.observed.skipped_steps if rank and rank.observed else None
        skipped, steps = (rank.skipped_steps or seen or 0, len(rank.step_times_s)) if rank else (0, 0)
        if skipped and (skipped == steps) == every:
            lost[launch.launch] = skipped / steps
            sentences.append(
                f"{of_launch(row, launch)}{skipped} of {counted(steps, 'step')} did not change the weights:"
                " gradients overflowed."
            )
    return together(sentences, math.inf if every else _lost(row, lost))


def still_growing(row: Row) -> Iterator[str]:
    """Where samples differ in size, peaks include a step with the largest ones, which comes after these."""
    for launch in row.each:
        for rank in launch.ranks:
            peaks, sizes = rank.raw.step_peaks_bytes, rank.raw.sizes
            if peaks and (step := rank.raw.grew_at) and not (sizes and sizes.largest_batch):
                yield (
                    f"{of_launch(row, launch)}{rank.name}'s memory peak still grew in step {step} of {len(peaks)}, by"
                    f" {size(peaks[step - 1] - peaks[step - 2])}: a longer training may need more."
                )


def loss_not_finite(measured: Sampled) -> Iterator[str]:
    if not all(map(math.isfinite, measured.losses)):
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
    if math.isinf(apart):
        yield "whether its checkpoint restores training is unknown: a loss after saving or loading is not finite."
    elif apart > LOSS_NOISE:
        yield f"its checkpoint does not restore training: the losses after loading differ by {percent(apart)}."


def leaves_out_much(measured: Sampled) -> bool:
    """Whether a step is no longer that of the model."""
    found = _coverage(measured)
    return max(found.without_gradient_share, found.not_run_share) > MUCH


def left_out(measured: Sampled) -> Iterator[str]:
    """Parameters without a gradient, and modules that do not run."""
    found = _coverage(measured)
    because = f"; {_keys(found)} of the samples are not used" if found.dropped_keys else ""
    if found.without_gradient:
        yield (
            f"{percent(found.without_gradient_share)} of the trained parameters ({amount(found.without_gradient)})"
            f" get no gradient: {', '.join(found.without_gradient_names)}{because}."
        )
    if found.not_run and found.not_run_names != found.without_gradient_names:
        yield (
            f"{percent(found.not_run_share)} of the parameters ({amount(found.not_run)}) are in modules that never run:"
            f" {', '.join(found.not_run_names)}{because}."
        )


def not_routed(measured: Sampled) -> Iterator[str]:
    found = _coverage(measured)
    if found.not_routed:
        share = percent(found.not_routed / found.parameters)
        yield f"{share} of the parameters are in modules, such as experts, to which warm-up routed no sample."


def much_not_routed(measured: Sampled) -> bool:
    found = _coverage(measured)
    return found.not_routed > MUCH * found.parameters


def dropped_keys(measured: Sampled) -> Iterator[str]:
    found = _coverage(measured)
    if found.dropped_keys and not (found.without_gradient or found.not_run):
        yield f"forward takes no {_keys(found)}: they are in the samples and not used."


def _coverage(measured: Sampled) -> Coverage:
    """Of all ranks: each stores the same, but for the samples."""
    dropped = {key: kind for rank in measured.ranks for key, kind in rank.raw.coverage.dropped_keys.items()}
    return measured.ranks[0].raw.coverage.model_copy(update={"dropped_keys": dropped})


def _keys(found: Coverage) -> str:
    return ", ".join(f"{key} ({kind})" for key, kind in found.dropped_keys.items())


def _without(share: float) -> float:
    """By which share a step is longer than without this share of it."""
    return share / (1 - share) if share < 1 else float("inf")


def disturbances(conditions: Conditions) -> Iterator[str]:
    """Sentences; each ends with a full stop."""
    if (share := conditions.others_cpu_share) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU during the attempt."
    elif (share := conditions.others_cpu_share_before) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU just before."
    if conditions.swapped_bytes is not None and conditions.swapped_bytes > SWAPPED_BYTES:
        yield f"{gib(conditions.swapped_bytes)} GiB were swapped during the attempt."
    for index, gpu in enumerate(conditions.gpus):
        yield from (f"GPU {index} {disturbance}" for disturbance in _of_gpu(gpu))


def disturbances_of(launches: Iterable[Conditions | None]) -> list[str]:
    """Those of all launches, in their order."""
    return [words for conditions in launches if conditions for words in disturbances(conditions)]


def short_of_disk(conditions: Conditions) -> Iterator[str]:
    """A sentence where the disk was nearly full. It disturbs no step."""
    free, whole = conditions.disk_free_bytes_min, conditions.disk_bytes
    if free is not None and whole and (free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * whole):
        yield f"the disk of the run's folder had {gib(free)} GiB left."


def _of_gpu(gpu: GpuConditions) -> Iterator[str]:
    if gpu.others_before:
        used = "" if gpu.others_bytes_before is None else f", {gib(gpu.others_bytes_before)} GiB in use"
        yield f"had {counted(gpu.others_before, 'other process')} on it before{used}."
    elif gpu.others_bytes_before is not None and gpu.others_bytes_before > OTHERS_GPU_BYTES:
        yield f"had {gib(gpu.others_bytes_before)} GiB in use by other processes before."
    elif gpu.busy_share_before is not None and gpu.busy_share_before > GPU_BUSY:
        yield f"was {percent(gpu.busy_share_before)} busy before."
    if why := [reason for reason in gpu.throttled or () if reason not in EXPECTED]:
        warm = "" if gpu.temperature_c_max is None else f" at up to {gpu.temperature_c_max} °C"
        low = gpu.sm_clock_share_min
        clock = f", its clock down to {percent(low)}" if low is not None and low < CLOCKS_LOW else ""
        yield f"was throttled{warm}{clock}: {', '.join(why)}."
