"""What lives at the peak of a step's memory, from its allocations, and from tensors that were seen in between. Pure."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.records.base import Count, Frozen

ACTIVATIONS = "activations"
BACKWARD = "made in backward"
"""Gradients of activations, and buffers of the library that nothing names."""
BUFFERS = "buckets and other buffers"
"""From before the step, and in no tensor of the model or the optimizer."""


class AtPeak(Frozen):
    """The memory of one rank's tensors when the most of it is in use."""

    when: str
    """The phase of the step, as in PHASES."""
    parts: dict[str, Count]
    """Bytes by part; they sum to the peak. Activations stand by class of unit: ``activations of Block``."""
    unused_bytes: Count | None = None
    """On a GPU, what the allocator has reserved by the end of the step, beyond the peak: fragmentation."""

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


class Move(NamedTuple):
    """A tensor's memory, taken or given back."""

    at_ns: int
    pointer: int
    size: int
    """Negative where it is given back."""
    own: bool = True
    """Whether it is not for a collective alone."""


class Span(NamedTuple):
    """A phase, or the forward of a unit within one."""

    name: str
    start_ns: int
    end_ns: int
    unit: bool


class Seen(NamedTuple):
    """A tensor that belonged to the model then."""

    at_ns: int
    pointer: int
    part: str


def at_peak(
    total_bytes: int,
    held: Mapping[int, tuple[str, int]],
    moves: Sequence[Move],
    spans: Sequence[Span],
    seen: Sequence[Seen],
) -> AtPeak:
    """The parts at the peak of a step.

    Args:
        total_bytes: of all tensors before the first move.
        held: parts and bytes of the tensors that were known before, by pointer.
        moves: of the step, in order.
        spans: of the step's phases and units.
        seen: what was met in between. It tells what a move was for; else the phase and the unit tell.
    """
    peak, highest, total = 0, total_bytes, total_bytes
    for number, move in enumerate(moves):
        total += move.size
        if total > highest:
            peak, highest = number + 1, total
    living: dict[int, Move] = {}
    before = dict(held)
    for move in moves[:peak]:
        if move.size > 0:
            living[move.pointer] = move
        elif living.pop(move.pointer, None) is None:
            before.pop(move.pointer, None)
    until_ns = moves[peak].at_ns if peak < len(moves) else None
    met = defaultdict[int, list[Seen]](list)
    for one in seen:
        met[one.pointer].append(one)
    phases = sorted((one for one in spans if not one.unit), key=lambda one: one.start_ns)
    units = sorted((one for one in spans if one.unit), key=lambda one: one.start_ns)
    parts = Counter[str]()
    for part, size in before.values():
        parts[part] += size
    freed_ns = _freed(moves[peak:])
    for move in living.values():
        last_ns = freed_ns.get(move.pointer, math.inf)
        known = [one.part for one in met[move.pointer] if move.at_ns <= one.at_ns <= last_ns]
        parts[known[0] if known else _made(move, phases, units)] += move.size
    if (rest := highest - parts.total()) > 0:
        parts[BUFFERS] += rest
    at_ns = moves[peak - 1].at_ns if peak else (until_ns or 0)
    return AtPeak(when=_phase(phases, at_ns), parts=dict(parts.most_common()))


def _freed(moves: Sequence[Move]) -> dict[int, int]:
    """When each pointer is next given back."""
    found: dict[int, int] = {}
    for move in moves:
        if move.size < 0:
            found.setdefault(move.pointer, move.at_ns)
    return found


def _phase(phases: Sequence[Span], at_ns: int) -> str:
    index = bisect_right([one.start_ns for one in phases], at_ns) - 1
    return phases[max(index, 0)].name if phases else "other"


def _made(move: Move, phases: Sequence[Span], units: Sequence[Span]) -> str:
    """By when it was made."""
    phase = _phase(phases, move.at_ns)
    if not move.own:
        return "transport"
    if phase == "dataload_wait":
        return "inputs"
    inside = [one for one in units if one.start_ns <= move.at_ns < one.end_ns]
    if inside and phase in ("forward", "bwd"):
        return f"{ACTIVATIONS} of {inside[-1].name}"
    if phase == "forward":
        return f"{ACTIVATIONS} outside units"
    return BACKWARD if phase == "bwd" else "optimizer"
