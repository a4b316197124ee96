"""From the program of a cell to a forecast of its memory at any batch, from what a rank holds at each moment. Pure.

It holds the activations of the program, and what its backend adds. That was read in the sources of torch 2.13,
accelerate 1.15 and DeepSpeed 0.19.8; each class names the files. All trained parameters are stepped with AdamW, or
none.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bench.backends.fsdp_memory import Fsdp1, Fsdp2
from bench.backends.rank_memory import Holding, Unsharded
from bench.backends.regimes import expected_regime
from bench.backends.registry import BACKENDS, Family, backend_of
from bench.backends.zero_memory import Zero3, Zero12
from bench.records.base import Device
from bench.records.cell import Cell, Regime
from bench.records.forecast import Forecast, Line
from bench.records.program import Program

LOADED = {"cuda": 1, "cpu": 2}
"""Batches in the memory of the device at once. accelerate's loader has the next one on the host
(accelerate/data_loader.py, `DataLoaderShard.__iter__`)."""

MIB = 2**20
CUDA_CONTEXT = 700 * MIB
"""The driver's context with the kernels of torch, cuBLAS and cuDNN."""
NCCL = 900 * MIB
"""Buffers and channels of NCCL in a process group over NVLink, and the kernels that it loads."""
DATA_SEGMENT: dict[Family, int] = {
    "single": 125 * MIB,
    "ddp": 125 * MIB,
    "fsdp": 125 * MIB,
    "fsdp2": 165 * MIB,
    "deepspeed": 145 * MIB,
}
"""On a CPU: by how much modules, threads and oneDNN's code let the data segment grow."""

MEMORY_OF_RANK: Mapping[str, Callable[[Cell, Program, Device], Unsharded]] = {
    "none": Unsharded,
    "FULL_SHARD": Fsdp1,
    "SHARD_GRAD_OP": Fsdp1,
    "fully_shard": Fsdp2,
    "zero1": Zero12,
    "zero2": Zero12,
    "zero3": Zero3,
}
"""By the value of `Regime.sharding`."""


def not_planned(cell: Cell) -> str | None:
    """Why there is no forecast of this cell; None if there is one."""
    if cell.script is not None:
        return "a script builds its own model"
    if cell.accelerate is not None:
        return "an accelerate config of your own may shard in other ways"
    if cell.backend not in BACKENDS:
        return f"{cell.backend} is no backend of bench"
    train = cell.train
    reasons = {
        f"{train.optimizer} keeps other state than AdamW": train.optimizer not in ("adamw", "none"),
        "the compiler chooses what to keep for backward": train.compile != "none",
        "offloaded state moves between host and device": train.offload != "none",
        "its mesh is not planned": train.dp_replicate_size > 1 or type(train.reshard_after_forward) is int,
        f"{cell.backend} shards in a way that is not planned": backend_of(cell).sharding not in MEMORY_OF_RANK,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def forecast(cell: Cell, program: Program) -> Forecast:
    """The forecast of ``cell``, for which `not_planned` is None."""
    if backend_of(cell).family == "fsdp" and program.flat is not None:
        program = program.flat
    first, second, *more = program.batches
    held = list(holdings(cell, program))
    lines = upper([_line(one, first, second) for one in held])
    whole = (cell.train.global_batch or 0) // cell.num_processes
    alone = holdings(cell, program, whole) if whole > 1 else ()
    third = [(batch, index) for index, batch in enumerate(more, start=2)]
    forward_end = next(moment for moment in program.moments if moment.event == "forward_end")
    grouped = backend_of(cell).family == "fsdp2"
    runs = _runs(program, grouped=grouped)
    return Forecast(
        cell=cell,
        device=program.device,
        lines=tuple(lines),
        alone=tuple(upper([_line(one, first, second) for one in alone])),
        input_bytes=LOADED[program.device] * program.input_bytes,
        allowance_bytes=allowance_bytes(cell, program.device),
        apart=min(1.0, max((_apart(lines, held, batch, index) for batch, index in third), default=0.0)),
        assumed=program.assumed,
        regime=_regime(cell, program),
        unit_parameters=_by_number(program, Counter(unit for unit, _ in runs), grouped=grouped),
        regathered=_by_number(program, _regathered(runs), grouped=grouped),
        flops={name: _straight(counts, first, second) for name, counts in program.flops.items()},
        kept_bytes=_straight(forward_end.live_bytes, first, second),
        moved_bytes=_straight(program.moved_bytes, first, second),
        operators=program.operators,
    )


def holdings(cell: Cell, program: Program, batch: int = 1) -> Iterator[Holding]:
    """What a rank of ``cell`` holds in a step at this batch, event by event."""
    rank = MEMORY_OF_RANK[backend_of(cell).sharding](cell, program, program.device)
    rank.parts["weights"] += program.buffers_bytes
    return rank.step(batch)


def _line(holding: Holding, first: int, second: int) -> Line:
    fixed, each = _straight(holding.activation_bytes, first, second)
    parts = {name: count for name, count in holding.parts.items() if count}
    return Line(when=holding.when, parts=parts, fixed_bytes=fixed, sample_bytes=each)


def _straight(values: Sequence[int], first: int, second: int) -> tuple[float, float]:
    """The line through the first two values: at batch 0, and for each sample."""
    each = (values[1] - values[0]) / (second - first)
    return values[0] - each * first, each


def _apart(lines: Iterable[Line], held: Iterable[Holding], batch: int, index: int) -> float:
    traced = max(sum(one.parts.values()) + one.activation_bytes[index] for one in held)
    return abs(max(line.at(batch) for line in lines) / traced - 1)


def upper(lines: Iterable[Line]) -> list[Line]:
    """The lines that are the highest at some batch from 1, in the order of these batches."""
    hull: list[Line] = []
    steepest: dict[float, Line] = {}
    for line in lines:
        other = steepest.get(line.sample_bytes)
        if other is None or line.at_zero > other.at_zero:
            steepest[line.sample_bytes] = line
    for _, line in sorted(steepest.items()):
        while hull and (line.at(1) >= hull[-1].at(1) or (len(hull) > 1 and _never(hull[-2], hull[-1], line))):
            hull.pop()
        hull.append(line)
    return hull


def _never(before: Line, line: Line, after: Line) -> bool:
    """Whether ``line`` is nowhere above both of its neighbors."""
    return _meet(before, after) <= _meet(before, line)


def _meet(one: Line, other: Line) -> float:
    return (one.at_zero - other.at_zero) / (other.sample_bytes - one.sample_bytes)


def _runs(program: Program, *, grouped: bool) -> list[tuple[int, bool]]:
    """The units in the order in which forward leaves them, and whether backward passes that run.

    Args:
        grouped: with FSDP2's other groups that free their weights after forward.
    """
    forward_end = next(at for at, moment in enumerate(program.moments) if moment.event == "forward_end")
    left = [
        it.index
        for it in program.moments[:forward_end]
        if it.event == "leave" and it.index is not None
        if it.index < program.units or (grouped and it.index not in program.kept)
    ]
    after = program.moments[forward_end:]
    passed = Counter(it.index for it in after if it.event == "backward" and it.index is not None)
    runs = list[tuple[int, bool]]()
    for unit in reversed(left):
        runs.append((unit, passed[unit] > 0))
        passed[unit] -= 1
    return runs[::-1]


def _regathered(runs: Sequence[tuple[int, bool]]) -> Counter[int]:
    """As `bench.runner.units.Units.parameters_regathered`."""
    follows = [*(passed for _, passed in runs[1:]), *([True] if runs else [])]
    return Counter(unit for (unit, passed), follower in zip(runs, follows, strict=True) if passed or follower)


def _by_number(program: Program, numbers: Counter[int], *, grouped: bool) -> dict[int, int]:
    """Parameters of the units by a number of each unit; with FSDP2's other groups that free their weights."""
    parameters = Counter[int]()
    for one in program.parameters:
        owner = one.group if grouped and one.unit is None and one.group not in program.kept else one.unit
        if owner is not None:
            parameters[numbers[owner]] += one.elements
    return dict(parameters)


def _regime(cell: Cell, program: Program) -> Regime:
    fields = {name: it for name, it in expected_regime(cell, program.device).items() if name in Regime.model_fields}
    given = {"optimizer_dtype": None, "reduction_dtype": None, "sharded_parameters": 0, **fields}
    parameters = program.parameters
    trained = {one.unit for one in parameters if one.trained}
    flat = backend_of(cell).family == "fsdp"
    counts = {
        "parameters": sum(one.elements for one in parameters),
        "trained_parameters": sum(one.elements for one in parameters if one.trained),
        "gradient_parameters": sum(one.elements for one in parameters if one.trained or (flat and one.unit in trained)),
    }
    return Regime.model_validate(given | counts)


def allowance_bytes(cell: Cell, device: Device) -> int:
    """What a rank of ``cell`` needs outside of torch's tensors: an allowance, and no measurement of the machine."""
    if device == "cpu":
        return DATA_SEGMENT[backend_of(cell).family]
    return CUDA_CONTEXT + (NCCL if cell.num_processes > 1 else 0)
