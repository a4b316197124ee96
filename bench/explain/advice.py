"""Settings that address a part of a step, each with the most that it can gain. Advice is a guess until it is tried."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bench.explain import parts
from bench.explain.parts import Part
from bench.explain.waterfall import Explained
from bench.records.cell import Cell

SMALL = 0.02
"""Advice that can gain less than this share of the step is left out."""


@dataclass(frozen=True)
class Setting:
    """A setting that may shorten some parts."""

    name: str
    """As an axis of a matrix."""
    value: Callable[[Cell], JsonValue]
    """The value to try; None if it does not apply to the cell."""
    addresses: Callable[[Part], bool]
    why: str
    steps: int = 1
    """Steps of now that one step then stands for: it takes so many times the samples."""
    applies: Callable[[Explained], bool] = lambda _: True
    """Whether the step has something for it to change, beside time."""


@dataclass(frozen=True)
class Advice:
    """A setting to try on a cell."""

    name: str
    value: JsonValue
    bound_s: float
    """Seconds of the step that it can gain at most: all of what it addresses, or what steps together save of it."""
    why: str
    steps: int = 1
    """As of `Setting`."""

    @property
    def words(self) -> str:
        """``grad_ckpt=false``."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.name}={value}"


def _collective(*operations: str, phase: str = "") -> Callable[[Part], bool]:
    kinds = (parts.EXPOSED, parts.WAITING)
    return lambda part: part.kind in kinds and part.detail in operations and phase in ("", part.phase)


_reduces = _collective("all-reduce", "reduce-scatter", "reduce", phase="backward")


def _kind(*kinds: str, phases: Sequence[str] = ()) -> Callable[[Part], bool]:
    return lambda part: part.kind in kinds and (not phases or part.phase in phases)


def _when(applies: Callable[[Cell], bool], value: JsonValue) -> Callable[[Cell], JsonValue]:
    return lambda cell: value if applies(cell) else None


def _reduces_once(cell: Cell) -> bool:
    """Whether micro-batches that add up are reduced between ranks together."""
    return cell.num_processes > 1 and not cell.reduces_each(cell.backend)  # named as they shard


def _twice(applies: Callable[[Cell], bool]) -> Callable[[Cell], JsonValue]:
    def value(cell: Cell) -> JsonValue:
        free = cell.accelerate is None and cell.train.global_batch is None
        return 2 * cell.train.accumulate if free and applies(cell) else None

    return value


def _bucket(resized: Callable[[int], int | None]) -> Callable[[Cell], JsonValue]:
    return lambda cell: resized(cell.train.bucket_mb) if cell.backend == "ddp" and cell.num_processes > 1 else None


def _fills_buckets(step: Explained) -> bool:
    """Whether DDP reduces more than its first bucket holds, 1 MiB: less is one reduction, whatever `bucket_mb` is."""
    sizes = [one.n_bytes for one in step.pace.called if one.operation == "all-reduce" and one.phase == "backward"]
    return None in sizes or sum(size or 0 for size in sizes) / step.pace.steps > 2**20


def _workers(cell: Cell) -> JsonValue:
    return max(2, 2 * cell.measure.dataloader_workers)


SETTINGS = (
    Setting(
        "reshard_after_forward",
        _when(lambda cell: cell.backend == "fsdp2" and cell.train.reshard_after_forward is not False, False),
        _collective("all-gather", phase="backward"),
        "weights stay gathered after forward, which takes memory",
    ),
    Setting(
        "zero_overlap_comm",
        _when(lambda cell: cell.backend in ("zero1", "zero2") and not cell.train.zero_overlap_comm, True),
        _reduces,
        "gradients are reduced while backward goes on",
    ),
    Setting(
        "bucket_mb",
        _bucket(lambda mib: 4 * mib),
        _collective("all-reduce", phase="backward"),
        "fewer and larger reductions, if many small ones wait for the network",
        applies=_fills_buckets,
    ),
    Setting(
        "bucket_mb",
        _bucket(lambda mib: mib // 4 or None),
        _collective("all-reduce", phase="backward"),
        "reductions start earlier, and less is left to reduce after the last gradient",
        applies=_fills_buckets,
    ),
    Setting(
        "find_unused_parameters",
        _when(lambda cell: cell.backend == "ddp" and cell.train.find_unused_parameters, False),
        _kind(parts.GAP, phases=("forward", "backward")),
        "DDP does not walk the graph; `bench audit params` says whether it may",
    ),
    Setting(
        "grad_ckpt",
        _when(lambda cell: cell.options.get("grad_ckpt") is True, False),
        _kind(parts.RECOMPUTED),
        "nothing is recomputed, and all activations are kept",
    ),
    Setting(
        "optimizer",
        _when(lambda cell: cell.train.optimizer not in ("adamw", "none"), "adamw"),
        _kind(parts.OPTIMIZER),
        "torch's AdamW: a bound for what a faster optimizer brings, not the same training",
    ),
    Setting(
        "fused",
        _when(lambda cell: cell.train.optimizer == "adamw" and not cell.train.fused and not cell.train.foreach, True),
        _kind(parts.OPTIMIZER),
        "one kernel updates all weights",
    ),
    Setting("dataloader_workers", _workers, _kind(parts.DATA), "other processes prepare the samples"),
    Setting(
        "dataloader_prefetch",
        lambda cell: 2 * cell.measure.dataloader_prefetch if cell.measure.dataloader_workers else None,
        _kind(parts.DATA),
        "workers keep more batches ready, for samples that take unequal times",
    ),
    Setting(
        "offload",
        _when(lambda cell: cell.train.offload != "none", "none"),
        _kind(parts.COPIES, parts.OPTIMIZER),
        "nothing is kept on the host, which takes memory of the device",
    ),
    Setting(
        "accumulate",
        _twice(_reduces_once),
        lambda part: _reduces(part) or part.kind == parts.OPTIMIZER,
        "two micro-batches share one reduction and one update: a larger global batch, with whole gradients meanwhile",
        steps=2,
    ),
    Setting(
        "accumulate",
        _twice(lambda cell: not _reduces_once(cell)),
        _kind(parts.OPTIMIZER),
        "two micro-batches share one update: a larger global batch",
        steps=2,
    ),
    Setting(
        "compile",
        _when(lambda cell: cell.train.compile == "none", "unit"),
        _kind(parts.GAP, parts.ELEMENTWISE, phases=("forward", "backward")),
        "fewer and larger kernels",
    ),
)
"""To add advice, add a line. A value of None says that the setting does not apply."""


def advice(step: Explained, cell: Cell) -> list[Advice]:
    """What may shorten the step, the largest bound first."""
    found = [
        Advice(one.name, value, _bound_s(step, one), one.why, one.steps)
        for one in SETTINGS
        if (value := one.value(cell)) is not None and one.applies(step)
    ]
    large = [one for one in found if one.bound_s >= SMALL * step.profiled_s]
    return sorted(large, key=lambda one: -one.bound_s)


def _bound_s(step: Explained, setting: Setting) -> float:
    addressed_s = sum(took_s for part, took_s in step.parts_s.items() if setting.addresses(part))
    return addressed_s if setting.steps == 1 else addressed_s * (1 - 1 / setting.steps)


def matrix(
    content: Mapping[str, JsonValue], axes: Mapping[str, JsonValue], cell: Cell, batch: int, tried: Sequence[Advice]
) -> dict[str, JsonValue]:
    """A matrix with the cell as it is, and once with each setting.

    Args:
        content: the matrix of the run.
        axes: of the cell, with its backend as in ``content``.
    """
    kept = {name: value for name, value in content.items() if name not in ("matrix", "exclude", "claims", "choices")}
    now = {**cell.options, **cell.train.model_dump(mode="json"), **cell.measure.model_dump(mode="json")}
    same: dict[str, JsonValue] = {**axes, "batch": batch}
    # An entry of `include` adds a cell only if it differs in an axis; else it would change the cell.
    own: dict[str, JsonValue] = {**same, **{one.name: now[one.name] for one in tried}}
    changed: list[JsonValue] = [{**same, one.name: one.value} for one in tried]
    return {**kept, "name": f"{content.get('name', 'run')}-try", "matrix": own, "include": changed}
