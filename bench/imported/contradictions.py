"""Rejects a row whose figures contradict each other, and names both. Pure."""

from collections.abc import Mapping

from bench.errors import InputError
from bench.imported import fields
from bench.imported.files import Given
from bench.records.cell import Attempt
from bench.records.phases import BACKWARD_STEP, PHASE_NAMES
from bench.units import gib, percent, rate

ROUNDING = 0.05
"""How much two published figures of the same quantity may differ, relatively; for a share of capacity, absolutely."""
BESIDE = 0.1
"""Share of a GPU's memory that may be in use outside the caching allocator."""
MISSED = 0.2
"""How much the sum of the phases may exceed the total of the same steps, relatively."""
MOST_LONGER = 2.0
"""How many times as long as a step the phases may be: they come from separate steps, synchronized at each phase."""


FIX = (
    "batch is the number of samples of one rank in one forward. If several of them make one optimizer step, say so:"
    " accumulate. If the source contradicts itself, leave one of the two out"
)


def of_throughput(row: Given, attempt: Attempt, step_s: float, samples_per_s: float) -> None:
    """Checks the throughput against the step time."""
    expected = attempt.batch_global / step_s
    if abs(samples_per_s / expected - 1) > ROUNDING:
        raise row.wrong(
            "samples_per_s",
            f"{rate(samples_per_s)} samples/s is impossible: {_step_of(attempt)} in {step_s:g} s gives"
            f" {rate(expected)}",
            fix=FIX,
        )


def _step_of(attempt: Attempt) -> str:
    """The samples of a step in words."""
    several = attempt.cell.micro_batches(attempt.batch_per_rank)
    each = f", {several} micro-batches each," if several > 1 else ""
    return f"batch {attempt.batch_per_rank} on {attempt.cell.num_processes} ranks{each}"


def of_steps(row: Given, attempt: Attempt) -> None:
    """Checks samples/s and steps/s, as far as they are exact, against the samples of a step."""
    samples, steps = (fields.amount(row.values.get(name)) for name in ("samples_per_s", "steps_per_s"))
    if not samples or not steps or not samples.value or not steps.value:
        return
    total = samples.value / steps.value
    rounded = samples.step / samples.value / 2 + steps.step / steps.value / 2
    if abs(total / attempt.batch_global - 1) > ROUNDING + rounded:
        raise row.wrong(
            "samples_per_s",
            f"{total:g} samples a step are impossible: {_step_of(attempt)} gives {attempt.batch_global}",
            fix=FIX,
        )


def of_memory(row: Given, name: str, peak: int | None, capacity: int | None, share: float | None) -> None:
    """Checks a memory peak against the capacity, and against the share of capacity."""
    if peak is None or capacity is None:
        return
    if peak > fields.MOST_HELD * capacity:
        raise InputError(
            f"{gib(peak)} GiB is more than the capacity of {gib(capacity)} GiB",
            where=row.place(_column(row, name)),
            field=name,
            fix="a field's name ends with its unit: _gb is 1e9 bytes, _gib is 2**30",
        )
    if share is None:
        return
    more = share - peak / capacity
    if -more > ROUNDING or more > _more_held(name, row.values.get("device") == "cpu"):
        raise row.wrong(
            "capacity_share",
            f"{percent(share)} is impossible: {name} is {gib(peak)} of {gib(capacity)} GiB, {percent(peak / capacity)}",
            fix="if the source contradicts itself, leave one of the two out",
        )


def _more_held(name: str, cpu: bool) -> float:
    """How far the share may exceed peak / capacity. On a GPU the allocator reserves more than is allocated, by an
    unknown amount, and NCCL and cuBLAS use memory outside it."""
    if cpu:
        return ROUNDING
    return ROUNDING + BESIDE if name == "peak_reserved" else 1.0


def of_phases(row: Given, phases_s: Mapping[str, float], step_s: float) -> None:
    """Checks the phases against their total, and the total against the step time."""
    if not phases_s:
        return
    backward_s = sum(phases_s.get(name, 0) for name in BACKWARD_STEP)
    others_s = sum(phases_s.get(name, 0) for name in PHASE_NAMES if name not in BACKWARD_STEP)
    parts_s = others_s + max(backward_s, phases_s.get("backward_step", 0))
    total_s = phases_s.get("total", parts_s)
    if parts_s > (1 + MISSED) * total_s:
        wrong = f"phases of {parts_s:g} s are impossible: their total is {total_s:g} s"
    elif total_s > MOST_LONGER * step_s:
        wrong = f"phases of {total_s:g} s are impossible: the step takes {step_s:g} s"
    else:
        return
    longest = max(phases_s, key=lambda name: phases_s[name])
    raise InputError(
        wrong,
        where=row.place(_column(row, longest)),
        field=longest,
        fix="a field's name ends with its unit; if the source contradicts itself, leave one of the two out",
    )


def _column(row: Given, name: str) -> str:
    return next(field for field in row.values if field.rpartition("_")[0] == name)
