"""From the program of a cell to a forecast of its memory at any batch. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.backends.allowance import allowance_bytes
from bench.backends.holding import RANKS, Holding, holdings
from bench.backends.regimes import expected_regime
from bench.backends.registry import BACKENDS, backend_of
from bench.records.cell import Cell, Regime
from bench.records.forecast import Forecast, Line
from bench.records.program import Program

LOADED = {"cuda": 1, "cpu": 2}
"""Batches in the memory of the device at once. accelerate's loader has the next one on the host
(accelerate/data_loader.py, `DataLoaderShard.__iter__`)."""


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
        f"{cell.backend} shards in a way that is not planned": backend_of(cell).sharding not in RANKS,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def forecast(cell: Cell, program: Program) -> Forecast:
    """The forecast of ``cell``, for which `not_planned` is None."""
    if backend_of(cell).family == "fsdp" and program.flat is not None:
        program = program.flat
    first, second, *more = program.batches
    held = list(holdings(cell, program))
    lines = upper([_line(one, first, second) for one in held])
    third = [(batch, index) for index, batch in enumerate(more, start=2)]
    turn = next(moment for moment in program.moments if moment.event == "turn")
    grouped = backend_of(cell).family == "fsdp2"
    runs = _runs(program, grouped=grouped)
    return Forecast(
        cell=cell,
        device=program.device,
        lines=tuple(lines),
        input_bytes=LOADED[program.device] * program.input_bytes,
        allowance_bytes=allowance_bytes(cell, program.device),
        apart=min(1.0, max((_apart(lines, held, batch, index) for batch, index in third), default=0.0)),
        assumed=program.assumed,
        regime=_regime(cell, program),
        unit_parameters=_by_number(program, Counter(unit for unit, _ in runs), grouped=grouped),
        regathered=_by_number(program, _regathered(runs), grouped=grouped),
        flops={name: _straight(counts, first, second) for name, counts in program.flops.items()},
        kept_bytes=_straight(turn.live_bytes, first, second),
        moved_bytes=_straight(program.moved_bytes, first, second),
        operators=program.operators,
    )


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
    turn = next(at for at, moment in enumerate(program.moments) if moment.event == "turn")
    left = [
        it.index
        for it in program.moments[:turn]
        if it.event == "leave" and it.index is not None
        if it.index < program.units or (grouped and it.index not in program.kept)
    ]
    passed = Counter(it.index for it in program.moments[turn:] if it.event == "backward" and it.index is not None)
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
