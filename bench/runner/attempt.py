"""One attempt in this process: set-up, warm-up, throughput window, phase window. Results and errors become a file."""

import contextlib
import os
import sys
import time
import traceback
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from bench import workloads
from bench.backends import backend_of, extensions, preloads
from bench.errors import InputError
from bench.machine import numa
from bench.observe.beats import BeatFile
from bench.observe.files import writable
from bench.observe.products import Computed
from bench.records.base import Device
from bench.records.cell import Attempt, Audit, Walk
from bench.records.phases import Stage
from bench.records.rank_outcome import (
    Metered,
    RankAudited,
    RankError,
    RankOk,
    RankOom,
    RankOutcome,
    RankWalked,
    SampleSizes,
)
from bench.runner import audits, checkpoint, log, oom, recorder, regime, tensors
from bench.runner.compiled import compilation, graphs
from bench.runner.computed import watching
from bench.runner.device import DEVICE_ADAPTERS, DeviceAdapter
from bench.runner.forward import METRICS
from bench.runner.heartbeat import pulse
from bench.runner.preload import build_extensions, preload
from bench.runner.refusals import check_grown, explained
from bench.runner.seen import Seen
from bench.runner.setup import Job, set_up
from bench.runner.steps import Batches, Window, phase_window, settle, step, throughput_window, untimed
from bench.runner.walk import walk
from bench.store import disk, secrets, spool
from bench.store.spool import Spec

_EPOCH_S = time.time() - time.monotonic()


def now_s() -> float:
    """Seconds since the epoch. Increases with time even if the system clock is set meanwhile."""
    return _EPOCH_S + time.monotonic()


SCALE_STEPS = 64
"""At most, to find a scale of gradients: more than there are powers of two to halve the first one by."""
WORST_STEPS = 6
"""Steps with the largest samples; after every second one follows another step. Allocators fragment: on a CPU, a single
one held up to a third less than a hundred steps of which some were as large."""


@dataclass(frozen=True)
class Here:
    """Where an attempt runs: one rank, its device, its folder and its beats."""

    rank: int
    device: DeviceAdapter
    out: Path
    beat: BeatFile


def run(spec: Spec, out: Path, rank: int) -> bool:
    """Run what ``spec`` describes as ``rank`` and write `rank<N>.json` to ``out``. Returns whether it succeeded."""
    out.mkdir(parents=True, exist_ok=True)
    log.send_output_to(out / f"rank{rank}.log")
    here = Here(rank, DEVICE_ADAPTERS[spec.device](), out, BeatFile(out, rank))
    try:
        with pulse(out, rank, here.beat):
            outcome = _run(spec, here)
    except BaseException as error:
        full = here.device.is_full()
        here.device.lift_limit()
        sys.stderr.write(_traceback(error))
        limited = spec.device == "cpu" and spec.attempt.cell.memory_limit_bytes is not None
        outcome = failure(error, rank, here.beat.stage, limited=limited, full=full)
    _write(out, rank, outcome)
    return isinstance(outcome, RankOk | RankWalked | RankAudited)


def _write(out: Path, rank: int, outcome: RankOutcome) -> None:
    """Write the result; on a full disk, into the space that the run has reserved for this."""
    try:
        spool.write(spool.rank_file(out, rank), outcome)
    except OSError:
        disk.give_up(out.parents[2])  # attempts/<cell>/<batch>
        time.sleep(0.5)  # another rank may be freeing it just now
        spool.write(spool.rank_file(out, rank), outcome)


def _run(spec: Spec, here: Here) -> RankOutcome:
    cell = spec.attempt.cell
    here.beat(Stage.START)
    start = time.perf_counter()
    preload(preloads(cell))
    workloads.search(spec.workload_folder)
    workloads.load(cell.workload)
    if backend_of(cell).family == "deepspeed" and (builders := extensions(cell, spec.device)):
        here.beat(Stage.COMPILE)
        compiling = time.perf_counter()
        build_extensions(builders)
        start += time.perf_counter() - compiling  # done once on a machine
    if isinstance(spec.attempt, Audit):
        here.beat(Stage.SETUP)
        audits.run(spec.attempt, here.device, here.out, here.rank, here.beat)
        return RankAudited(rank=here.rank)
    if isinstance(spec.attempt, Walk):
        here.device.keep_little()
        job = set_up(spec.attempt.trained, here.device, spec.attempt.batches_per_rank[0], enter=here.beat)
        walk(job, spec.attempt, here.device, here.out, here.rank, here.beat)
        return RankWalked(rank=here.rank)
    # Without a gap up to the end of the warm-up: a thread of gloo may free what set-up sent at any time after it.
    with contextlib.ExitStack() as until_warm:
        until_warm.enter_context(tensors.counting(_counts(spec.attempt, spec.device)))
        job = set_up(cell, here.device, spec.attempt.batch_per_rank, check=spec.check, enter=here.beat)
        with job.used.explained(), explained(cell, job.model, job.forward):
            return _measure(spec.attempt, spec.device, job, here, time.perf_counter() - start, until_warm)


def _measure(
    attempt: Attempt, device: Device, job: Job, here: Here, setup_s: float, until_warm: contextlib.ExitStack
) -> RankOk:
    """Warm up, close ``until_warm``, and measure."""
    measure = attempt.measure
    warmup_start = time.perf_counter()
    batches = iter(job.loader(attempt.batch_per_rank))
    scaled = _find_scale(job, batches, here) if job.scales else []
    watches = attempt.cell.train.compile == "none"
    with (
        job.units.watched(batches) if job.units else contextlib.nullcontext(batches) as counted,
        job.used.watched(counted) if watches else contextlib.nullcontext(counted) as watched,
        check_grown(job.model),
    ):
        warmup, computed = _warm_up(attempt, job, watched, here)
    until_warm.close()
    coverage = job.used.coverage(job.accelerator, job.forward.dropped)
    observed = regime.observe(job, computed)
    regime.check(attempt.cell, device, observed)
    if measure.checkpoint:
        checkpoint.check_room(job, here.out)
    warmup = settle(job, batches, warmup_start, warmup, here.device, here.beat, measure.warmup_s)
    compiled = compilation() if attempt.cell.train.compile != "none" or graphs() else None
    here.device.reset_peaks()
    meters = here.device.meters()
    measure_start = time.perf_counter()
    expected = attempt.samples_of_rank(measure.steps)
    seen = Seen(batches, expected, attempt.batch_per_rank, values=job.largest is not None)
    for meter in meters.values():
        meter.start()
    throughput = throughput_window(job, seen, measure.steps, here.device, here.beat, Stage.MEASURE)
    amounts = {name: amount for name, meter in meters.items() if (amount := meter.stop()) is not None}
    made = compilation().graphs if compiled else 0
    tokens, lengths = seen.tokens()
    sizes = _step_on_largest(attempt, job, batches, seen.most_values, here)
    memory = here.device.memory(job.capacity_bytes)
    made -= compilation().graphs if compiled else 0  # steps on the largest samples are not measured
    phases = phase_window(job, batches, measure.phase_steps, here.device, here.beat)
    if compiled:
        made += compilation().graphs - compiled.graphs
        compiled = compiled.model_copy(update={"graphs_while_measured": made})
    folder = spool.checkpoint_folder(here.out)
    counts = _counts(attempt, device)
    with tensors.counting(counts and measure.checkpoint):  # loading replaces the optimizer's state
        saved = checkpoint.save_and_load(job, batches, folder, here.device, here.beat) if measure.checkpoint else None
    if counts:
        here.device.lift_limit()  # the profiler needs memory, too
        memory = memory.model_copy(
            update={"peak_tensor_bytes": tensors.peak_bytes(partial(step, job, batches, untimed))}
        )
    here.beat(Stage.DONE)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    metrics = dict(zip(METRICS, zip(*throughput.metrics, *phases.metrics, strict=True), strict=True))
    return RankOk(
        rank=here.rank,
        node=os.environ.get(spool.NODE),
        regime=observed,
        memory=memory,
        step_times_s=tuple(throughput.times_s),
        host_times_s=None if device == "cpu" else tuple(throughput.host_times_s),
        step_peaks_bytes=_known(throughput.peaks_bytes),
        skipped_steps=None if job.optimizer is None else throughput.skipped,
        phase_times_s={phase: tuple(times) for phase, times in phases.phase_times_s.items()},
        own_work_s={phase: tuple(times) for phase, times in phases.own_work_s.items()},
        collective_times_s=phases.collective_times_s,
        losses=metrics.pop("loss"),
        warmup_losses=tuple(means[METRICS.index("loss")] for means in (*scaled, *warmup.metrics)),
        metrics=metrics,
        setup_s=setup_s,
        warmup_s=measure_start - warmup_start,
        threads=torch.get_num_threads(),
        cores=len(cpus) if cpus else None,
        cpus=numa.listed(cpus) if cpus else None,
        numa_node=numa.node_of(cpus, numa.nodes()) if cpus else None,
        units=job.unit_names,
        unit_parameters=job.units.parameters_by_runs() if job.units else None,
        regathered=job.units.parameters_regathered() if job.units else None,
        coverage=coverage,
        work=job.work(lengths),
        tokens=tokens,
        metered=Metered(samples=expected, amounts=amounts),
        sizes=sizes,
        compilation=compiled,
        checkpoint=saved,
        traffic=recorder.traffic(phases.last_step_collectives),
    )


def _step_on_largest(
    attempt: Attempt, job: Job, batches: Batches, most_measured: int, here: Here
) -> SampleSizes | None:
    """Where samples differ in size, steps on a batch of the largest, for the memory peaks: later steps of a training
    take such samples, too."""
    sizes = None
    if found := job.sizes:
        sizes = SampleSizes(
            samples=found.samples, scanned=found.scanned, smallest=found.smallest, largest=found.largest
        )
    if job.largest is None:
        return sizes
    batch = Seen(iter(job.largest(attempt.batch_per_rank)), 0, attempt.batch_per_rank, values=True)
    for number in range(WORST_STEPS):
        here.beat(Stage.LARGEST, number, WORST_STEPS)
        step(job, batch, untimed)
        if number % 2:
            step(job, batches, untimed)
        here.device.synchronize()
    held = {"largest_batch": batch.most_values, "largest_measured_batch": most_measured}
    return sizes.model_copy(update=held) if sizes else SampleSizes(**held)


def _known(peaks_bytes: list[int | None]) -> tuple[int, ...] | None:
    known = tuple(peak for peak in peaks_bytes if peak is not None)
    return known if len(known) == len(peaks_bytes) else None


def _counts(attempt: Attempt, device: Device) -> bool:
    return attempt.cell.measure.count_tensors and device == "cpu" and not attempt.short


def _find_scale(job: Job, batches: Batches, here: Here) -> list[list[float]]:
    """The metrics of steps up to the first whose scaled gradients do not overflow: only then there is an optimizer's
    state.

    Raises:
        InputError: there is none.
    """
    metrics: list[list[float]] = []
    for _ in range(SCALE_STEPS):
        window = throughput_window(job, batches, 1, here.device, here.beat, Stage.WARMUP)
        metrics += window.metrics
        if not window.skipped:
            return metrics
    raise InputError(
        f"gradients overflowed in each of {SCALE_STEPS} steps, however small their scale: train in another"
        " mixed_precision, or with a smaller loss"
    )


def _warm_up(attempt: Attempt, job: Job, batches: Batches, here: Here) -> tuple[Window, Computed]:
    """The steps before the measurement, and what the last of them computed."""
    steps, products = attempt.measure.warmup_steps, attempt.cell.train.compile == "none"

    def window(batches: Batches, done: int, number: int) -> Window:
        def beat(stage: Stage, index: int, _: int) -> None:
            here.beat(stage, done + index, steps)

        return throughput_window(job, batches, number, here.device, beat, Stage.WARMUP)

    first = window(batches, 0, steps - 1)
    for watch in (job.units, job.used):
        if watch is not None:
            watch.end_if_compiled()
    with watching(batches, products=products) as (watched, computed):
        last = window(watched, steps - 1, 1)
    return replace(last, metrics=first.metrics + last.metrics), computed


def failure(
    error: BaseException, rank: int, phase: str, *, limited: bool = False, full: bool = False
) -> RankOom | RankError:
    """The error as data: out of memory, or anything else.

    Args:
        limited: a memory limit of bench was in force, so that some vaguer errors mean memory too.
        full: the device was full, so that some errors of its libraries do.
    """
    if evidence := oom.find(error, limited=limited, full=full):
        return RankOom(
            rank=rank,
            phase=phase,
            message=_writable(evidence.message),
            source=evidence.kind,
            bytes_asked=evidence.bytes_asked,
            at=now_s(),
        )
    message, text = _writable(f"{type(error).__name__}: {error}")[:2000], _traceback(error)[-20_000:]
    place = recorder.site_of(error)
    return RankError(rank=rank, phase=phase, error=message, traceback=text, at=now_s(), place=place)


def _traceback(error: BaseException) -> str:
    return _writable("".join(traceback.format_exception(error)))


def _writable(text: str) -> str:
    """The text without secrets, and with characters escaped that UTF-8 cannot encode."""
    return writable(secrets.mask(text))
