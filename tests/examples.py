"""Builders of results for tests. The machine and its numbers are invented."""

import io
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console

from bench.records.account import Account
from bench.records.cell import Attempt, Cell, Measure, Regime
from bench.records.claim import Claim
from bench.records.forecast import Forecast, Line
from bench.records.machine import Machine
from bench.records.outcome import Failed, Hang, Ok, Oom, Outcome, Result, Skipped
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import Memory, Metered, RankOk
from bench.records.verdict import Probe
from bench.report.doubts import doubts
from bench.report.naming import row_name
from bench.report.render import markdown, terminal
from bench.report.rows import Summary
from bench.report.tables import sections
from bench.report.tables.sections import Choices, Report
from bench.statistics.launches import LaunchVariation
from bench.statistics.ratio import QUIET, Ratio, Steps, typical_ratios, typical_step
from bench.store.run_folder import Store

GIB = 2**30

MACHINE = Machine.model_validate_json("""{
  "hardware": {"device": "cpu", "devices": 0, "cores": 8, "memory_bytes": 17179869184},
  "accelerators": [], "driver": null, "cpu": "Example CPU", "system": "Example OS 1.0", "python": "3.11.0",
  "libraries": {"torch": "1.2.3", "accelerate": "4.5.6"}, "bench": "0.0.0",
  "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": true,
  "allocator": null, "threads": {"OMP_NUM_THREADS": "4"}
}""")

MATRIX_YAML = "name: example\nmatrix: {backend: single, batch: 1}\n"
"""A readable matrix, whose only cell is none of those that tests store."""

CUDA_MACHINE = Machine.model_validate(
    MACHINE.model_dump()
    | {
        "hardware": {"device": "cuda", "devices": 2, "cores": 8, "memory_bytes": 80 * GIB},
        "accelerators": ("Example GPU", "Example GPU"),
        "driver": "1.0",
        "allocator": "expandable_segments:True",
        "git_dirty": False,
    }
)

REGIMES: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_type": "MULTI_CPU", "sharding": "none"},
    "fsdp": {
        "distributed_type": "FSDP",
        "sharding": "FULL_SHARD",
        "sharded_parameters": 900,
        "weights_dtype": "float32",
    },
    "zero2": {"distributed_type": "DEEPSPEED", "sharding": "zero2"},
}


PHASES_S = (0.01, 0.02, 0.04, 0.01, 0.01, 0.005, 0.005)


def cell(backend: str = "ddp", **changes: Any) -> Cell:
    """A cell of two ranks; ``options`` decide its id, as they do in a matrix."""
    fields = {
        "backend": backend,
        "workload": "pi07",
        "options": {"preset": "tiny"},
        "num_processes": 2,
        "mixed_precision": "bf16",
        "measure": Measure(warmup_steps=1, steps=3, phase_steps=2),
    }
    return Cell.model_validate(fields | changes)


def _sum(values: Sequence[float]) -> float:
    """The same in every Python: from 3.12 on, `sum` rounds once."""
    return round(math.fsum(values), 12)


def rank(
    number: int = 0,
    step_times_s: Sequence[float] = (0.1, 0.1, 0.1),
    *,
    backend: str = "ddp",
    phases_s: Sequence[float] = PHASES_S,
    totals_s: Sequence[float] | None = None,
    memory: Memory | None = None,
    losses: Sequence[float] = (1.0, 0.75, 0.5),
    metered: Metered | None = None,
) -> RankOk:
    """One rank of two; each phase takes ``phases_s`` in every step of the phase window, and the last loss stays.

    Args:
        totals_s: of the phase window's steps, by default two; empty leaves it out.
    """
    totals = tuple(totals_s) if totals_s is not None else (_sum(phases_s),) * 2
    if totals_s is None and tuple(phases_s) == PHASES_S:
        # The two windows agree unless a test says otherwise.
        phases_s = [part * fmean(step_times_s) / _sum(PHASES_S) for part in PHASES_S]
        totals = (_sum(phases_s),) * 2
    n_steps = len(step_times_s) + len(totals)
    means_s = dict(zip(PHASE_NAMES, phases_s, strict=True)) | {"backward_step": _sum(phases_s[2:6])}
    phase_times_s = {name: (time,) * len(totals) for name, time in means_s.items()} | {"total": totals}
    return RankOk.model_validate(
        {
            "rank": number,
            "regime": regime(backend),
            "memory": memory or rss(1.0),
            "step_times_s": tuple(step_times_s),
            "phase_times_s": phase_times_s if totals else {},
            "losses": (*losses, *losses[-1:] * n_steps)[:n_steps],
            "warmup_losses": (2.0,),
            "threads": 1,
            "metrics": {},
            "setup_s": 1.0,
            "warmup_s": 0.5,
            "units": (),
            "coverage": {"parameters": 1000, "trainable_parameters": 1000},
            "metered": metered,
        }
    )


def regime(backend: str = "ddp") -> Regime:
    fields = {
        "world_size": 2,
        "ranks_per_node": 2,
        "parameters": 1000,
        "trained_parameters": 1000,
        "gradient_parameters": 1000,
        "sharded_parameters": 0,
        "weights_dtype": "bfloat16",
        "masters_dtype": "float32",
        "optimizer_dtype": "float32",
        "reduction_dtype": "bfloat16",
    }
    return Regime.model_validate(fields | REGIMES[backend])


def rss(gib: float, capacity_gib: float = 4.0) -> Memory:
    """Memory of a rank on a CPU."""
    return Memory(
        peak_allocated_bytes=int(gib * 2**29),
        peak_reserved_bytes=None,
        peak_rss_bytes=int(gib * GIB),
        capacity_bytes=int(capacity_gib * GIB),
    )


def vram(allocated_gib: float, reserved_gib: float, capacity_gib: float = 80.0) -> Memory:
    """Memory of a rank on a GPU."""
    return Memory(
        peak_allocated_bytes=int(allocated_gib * GIB),
        peak_reserved_bytes=int(reserved_gib * GIB),
        peak_rss_bytes=2 * GIB,
        capacity_bytes=int(capacity_gib * GIB),
    )


def ok(*step_times_s: Sequence[float], **changes: Any) -> Ok:
    """Measured; one sequence of step times a rank, by default two ranks of 0.1 s."""
    times = step_times_s or ((0.1, 0.1, 0.1),) * 2
    return world(*(rank(number, steps, **changes) for number, steps in enumerate(times)))


def world(*ranks: RankOk) -> Ok:
    """Measured by these ranks, whose world has as many."""
    size = {"world_size": len(ranks), "ranks_per_node": len(ranks)}
    regimes = [rank.regime.model_copy(update=size) for rank in ranks]
    return Ok(ranks=tuple(r.model_copy(update={"regime": seen}) for r, seen in zip(ranks, regimes, strict=True)))


def result(
    outcome: Outcome | None = None,
    *,
    backend: str = "ddp",
    batch: int = 2,
    axes: dict[str, Any] | None = None,
    machine: Machine = MACHINE,
    wall_s: float = 10.0,
    **changes: Any,
) -> Result:
    """A stored result; ``axes`` go into the cell's options as well. ``changes`` are fields of the cell."""
    axes = axes or {}
    # The ranks and the steps that were measured are those that were asked for.
    if isinstance(outcome, Ok):
        first, n_ranks = outcome.ranks[0], len(outcome.ranks)
        steps = {"steps": len(first.step_times_s), "phase_steps": first.n_phase_steps}
        measure = Measure(warmup_steps=len(first.warmup_losses), **steps)
        changes = {"num_processes": n_ranks, "measure": measure} | changes
    options = {"preset": "tiny", **axes}
    of = cell(backend, **{"options": options, **changes})
    return Result(
        attempt=Attempt(cell=of, batch_per_rank=batch),
        axes={"backend": backend, **axes},
        outcome=outcome or ok(*((0.1,) * of.measure.steps,) * of.num_processes, backend=backend),
        machine=machine,
        isolation=None if isinstance(outcome, Skipped) else "fork",
        started_at="2030-01-01T00:00:00Z",
        wall_s=wall_s,
    )


def accounted(one: Result, **parts_s: float) -> Result:
    """The same result with an account; its parts are seconds."""
    return one.model_copy(update={"account": Account(parts_s=parts_s)})


def launched(one: Result, launch: int) -> Result:
    """The same measurement as another launch."""
    return one.model_copy(update={"attempt": one.attempt.model_copy(update={"launch": launch})})


def in_few_steps(one: Result) -> Result:
    """The same as a search's attempt of a few steps."""
    return one.model_copy(update={"attempt": one.attempt.model_copy(update={"short": True})})


def rendered(results: Sequence[Result], probes: Sequence[Probe] = ()) -> str:
    """The report as markdown."""
    return markdown.render(sections.Report(results=results, probes=probes).sections)


def doubt_sentences(summary: Summary) -> list[str]:
    """One sentence for each doubt."""
    return [
        f"{row_name(summary, doubt.row)}: {doubt.reason}" if doubt.row else doubt.reason for doubt in doubts(summary)
    ]


def step_ratios(
    pairs: Sequence[tuple[Steps, Steps]], noise: float | None = None, variation: LaunchVariation | None = None
) -> list[Ratio | None]:
    """The ratio of each pair of base and head."""
    return typical_ratios([(typical_step(base), typical_step(head)) for base, head in pairs], noise, variation)


def stored(folder: Path, results: list[Result]) -> Path:
    """A finished run's folder."""
    store = Store(folder)
    with store.open(MACHINE, [each.attempt.cell for each in results], MATRIX_YAML):
        for each in results:
            store.finish(each)
    return folder


def mixed() -> list[Result]:
    """A run on a CPU that met every outcome."""
    ddp = {"num_cams": 1}
    return [
        accounted(
            result(ok((0.10, 0.10, 0.13), (0.10, 0.12, 0.14)), batch=2, axes=ddp),
            launch=2.0,
            join=0.5,
            setup=1.0,
            warmup=1.5,
            measure=3.0,
            phases=1.0,
            end=0.5,
        ),
        result(ok((0.16, 0.16, 0.16), (0.15, 0.16, 0.17)), batch=4, axes=ddp),
        result(Oom(rank=1, phase="bwd", reason="can't allocate memory:\nyou tried 7 | 8"), batch=8, axes=ddp),
        result(
            ok(backend="zero2", phases_s=(0.01, 0.02, 0.059, 0.0005, 0.0005, 0.005, 0.005)),
            batch=2,
            backend="zero2",
            axes={"num_cams": 4},
        ),
        result(Hang(reason="no result within 60 s: rank 0 in bwd"), batch=4, backend="zero2", axes={"num_cams": 4}),
        result(Failed(rank=0, phase="start", reason="ValueError: <b>`x`</b>"), backend="fsdp", axes={"num_cams": 4}),
        result(Skipped(reason="ZeRO-3 with gradient checkpointing"), backend="zero3", axes={"num_cams": 4}, wall_s=0),
    ]


def forecast(backend: str = "ddp", *, of: Cell | None = None, parameters: int | None = 100, **changes: Any) -> Forecast:
    """A plan in small numbers, of a model with so many parameters; None: those of `regime`."""
    counts = dict.fromkeys(("parameters", "trained_parameters", "gradient_parameters"), parameters)
    fields = {
        "cell": of or cell(backend),
        "device": "cpu",
        "lines": (Line(when="backward", parts={}, fixed_bytes=0.0, sample_bytes=10.0),),
        "input_bytes": 0,
        "allowance_bytes": 0,
        "apart": 0.0,
        "assumed": 0,
        "regime": regime(backend).model_copy(update={**counts, "sharded_parameters": 0} if parameters else {}),
        "unit_parameters": {1: parameters or 1},
        "flops": {},
        "kept_bytes": (0.0, 10.0),
        "moved_bytes": (0.0, 0.0),
        "operators": 0,
    }
    return Forecast.model_validate(fields | changes)


FASTER: dict[str, Any] = {
    "say": "zero2 is faster",
    "metric": "samples_per_s_global",
    "of": {"backend": "zero2"},
    "against": {"backend": "ddp"},
    "ratio": {"at_least": "1x"},
}


def claim(**changes: Any) -> Claim:
    return Claim.model_validate({name: value for name, value in {**FASTER, **changes}.items() if value is not ...})


def on_terminal(
    results: Sequence[Result],
    choices: Choices | None = None,
    *,
    width: int = 100,
    color: Literal["standard"] | None = None,
) -> str:
    file = io.StringIO()
    console = Console(width=width, file=file, color_system=color, force_terminal=True, highlight=False)
    for renderable in terminal.render(Report(results=results, choices=choices or Choices()).sections):
        console.print(renderable)
    return file.getvalue()


N_STEPS = 50


def noisy_steps(source: random.Random, *, slower: float = 1.0, jitter: float = 0.01, drift: float = 0.0) -> list[float]:
    """A run of about 100 ms a step: its own level, steps that are alike (AR(1), 0.7), and a slow drift."""
    level = 0.1 * slower * math.exp(source.gauss(0, QUIET / 2))
    state, found = 0.0, []
    for index in range(N_STEPS):
        state = 0.7 * state + math.sqrt(1 - 0.7**2) * source.gauss(0, jitter)
        found.append(level * math.exp(state + drift * index / N_STEPS))
    return found
