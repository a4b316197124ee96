"""Figures of one row that cannot all be right: refused, with both named. Pure."""

from collections.abc import Mapping

from bench.errors import InputError
from bench.imported import fields
from bench.imported.files import Given
from bench.records.cell import Attempt
from bench.records.phases import BACKWARD_STEP, PHASE_NAMES
from bench.units import gib, percent, rate

ROUNDING = 0.05
"""By how much two published figures that say the same may differ; of a share of capacity, in points."""
BESIDE = 0.1
"""Share of a GPU that may be in use beside the caching allocator."""
MISSED = 0.2
"""By how much phases may exceed the total of the same steps."""
MOST_LONGER = 2.0
"""Times a step: phases are timed in steps of their own, in which ranks wait for the device at each."""


def of_throughput(row: Given, attempt: Attempt, step_s: float, samples_per_s: float) -> None:
    """A step time and a throughput."""
    expected = attempt.batch_per_rank * attempt.cell.num_processes / step_s
    if abs(samples_per_s / expected - 1) > ROUNDING:
        raise InputError(
            f"{rate(samples_per_s)} samples/s cannot be: batch {attempt.batch_per_rank} on"
            f" {attempt.cell.num_processes} ranks in {step_s:g} s are {rate(expected)}",
            where=row.place("samples_per_s"),
            field="samples_per_s",
            fix="batch counts one rank's samples in one optimizer step; where the source contradicts itself, leave one"
            " of the two out",
        )


def of_memory(row: Given, name: str, peak: int | None, capacity: int | None, share: float | None) -> None:
    """A peak, the capacity and the share of it that is held."""
    if peak is None or capacity is None:
        return
    if peak > fields.MOST_HELD * capacity:
        raise InputError(
            f"{gib(peak)} GiB are more than the capacity of {gib(capacity)} GiB",
            where=row.place(_column(row, name)),
            field=name,
            fix="a field's unit is the end of its name: _gb is 1e9 bytes, _gib 2**30",
        )
    if share is None:
        return
    more = share - peak / capacity
    if -more > ROUNDING or more > _more_held(name, row.values.get("device") == "cpu"):
        raise InputError(
            f"{percent(share)} cannot be: {name} is {gib(peak)} of {gib(capacity)} GiB, {percent(peak / capacity)}",
            where=row.place("capacity_share"),
            field="capacity_share",
            fix="where the source contradicts itself, leave one of the two out",
        )


def _more_held(name: str, cpu: bool) -> float:
    """By how much the share may exceed what a peak is of the capacity. On a GPU the allocator holds more than is
    allocated, nobody knows how much, and NCCL and cuBLAS take theirs beside it."""
    if cpu:
        return ROUNDING
    return ROUNDING + BESIDE if name == "peak_reserved" else 1.0


def of_phases(row: Given, phases_s: Mapping[str, float], step_s: float) -> None:
    """Phases, their total and the step."""
    if not phases_s:
        return
    backward_s = sum(phases_s.get(name, 0) for name in BACKWARD_STEP)
    others_s = sum(phases_s.get(name, 0) for name in PHASE_NAMES if name not in BACKWARD_STEP)
    parts_s = others_s + max(backward_s, phases_s.get("backward_step", 0))
    total_s = phases_s.get("total", parts_s)
    if parts_s > (1 + MISSED) * total_s:
        wrong = f"phases of {parts_s:g} s cannot be: their total is {total_s:g} s"
    elif total_s > MOST_LONGER * step_s:
        wrong = f"phases of {total_s:g} s cannot be: the step takes {step_s:g} s"
    else:
        return
    longest = max(phases_s, key=lambda name: phases_s[name])
    raise InputError(
        wrong,
        where=row.place(_column(row, longest)),
        field=longest,
        fix="a field's unit is the end of its name; where the source contradicts itself, leave one of the two out",
    )


def _column(row: Given, name: str) -> str:
    return next(field for field in row.values if field.rpartition("_")[0] == name)
