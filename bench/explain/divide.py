"""Divides the profiled steps of each rank into parts that sum to them exactly: every instant belongs to one part.

On a device, an instant is compute if any kernel computes then, else a collective, else a copy; else the device is idle,
because no data came or because the host queued nothing. On a CPU the same is read from the operators of the thread that
trains, and from its waits for collectives.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from bench.errors import InputError
from bench.explain import parts
from bench.explain.intervals import Interval, Intervals, divided, innermost, intersection, total, union
from bench.explain.parts import OTHER, Part
from bench.explain.trace import Event, Trace


class Called(NamedTuple):
    """The calls of one collective in one phase, on one rank. Times are nanoseconds, sums over all profiled steps."""

    operation: str
    phase: str
    calls: int
    n_bytes: int | None
    in_flight: int
    transfer: int | None
    """From when the last rank had come; None if not all ranks' traces tell."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """The profiled steps of one rank. Times are nanoseconds."""

    rank: int
    on_device: bool
    steps: int
    windows: tuple[Interval, ...]
    """Of each step; a single one for all steps where only the device's own span is known."""
    spans: Mapping[Part, list[Interval]]
    """When each part is. They do not overlap, and cover the windows."""
    hidden: list[Interval]
    """When a collective is in flight while the rank computes."""
    communication: list[Interval]
    """When one is in flight."""
    called: tuple[Called, ...]
    units: Mapping[str, int]
    """Forward and recomputation by class of unit, where they are marked."""
    marked: bool = True
    """Whether the trace marks its steps; else all of it is one."""

    @property
    def step(self) -> float:
        """Nanoseconds of a step, on average."""
        return total(self.windows) / self.steps

    @property
    def parts(self) -> dict[Part, float]:
        """Nanoseconds of a step by part, the longest first."""
        sums = {part: total(spans) / self.steps for part, spans in self.spans.items()}
        return dict(sorted(sums.items(), key=lambda one: -one[1]))

    @property
    def own(self) -> float:
        """Nanoseconds of a step in which no collective blocks the rank."""
        blocked = (parts.WAITING, parts.EXPOSED)
        return self.step - sum(took for part, took in self.parts.items() if part.kind in blocked)

    def by_step(self, part: Part) -> list[int]:
        """Nanoseconds of the part in each window."""
        return [total(intersection(self.spans.get(part, []), [window])) for window in self.windows]


def divide(traces: Sequence[Trace]) -> list[Division]:
    """Every rank's steps. If all ranks are there, waiting for the last one is told apart from transfer.

    Raises:
        InputError: a trace holds no step.
    """
    windows = [_windows(trace) for trace in traces]
    calls = [_calls(trace, steps) for trace, (steps, _) in zip(traces, windows, strict=True)]
    complete = len(traces) > 1 and traces[0].world_size in (None, len(traces))
    arrivals = _arrivals(traces, calls) if complete else [{} for _ in traces]
    return [_divided(*one) for one in zip(traces, windows, calls, arrivals, strict=True)]


def pacing(divisions: Sequence[Division], critical: int | None = None) -> Division:
    """The rank whose parts make a step as long as it is: the others wait for it.

    Args:
        critical: as `bench.report.critical_rank` names it from measured steps. Else it is the rank that the rule there
            would look at, the one with the most work of its own.
    """
    named = [one for one in divisions if one.rank == critical]
    return named[0] if named else max(divisions, key=lambda one: one.own)


def _windows(trace: Trace) -> tuple[list[Interval], int]:
    """The steps to divide, and how many they are."""
    own = [one for one in trace.marks if one.name == parts.STEP]
    marked = own or _apart([one for one in trace.marks if one.name.startswith("ProfilerStep")])
    if own or (marked and not trace.device):
        starts = [one.start for one in marked]
        windows, number = list(zip(starts, [*starts[1:], marked[-1].end], strict=True)), len(marked)
    else:
        windows, number = _of_device_alone(trace, marked)
    if total(windows) <= 0:
        raise InputError("holds no step that takes time", where=trace.name)
    return windows, number


def _is_step(one: Event) -> bool:
    return one.name == parts.STEP or one.name.startswith("ProfilerStep")


def _apart(marked: Sequence[Event]) -> list[Event]:
    """Without marks within others, and those that another thread repeats."""
    kept: list[Event] = []
    for one in sorted(marked, key=lambda one: (one.start, -one.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
    return kept


def _of_device_alone(trace: Trace, marked: Sequence[Event]) -> tuple[list[Interval], int]:
    """From the first kernel to the first one of the last step: profiling may end while the device works on that one.

    Without two steps, or where the trace does not say which kernels a step has queued, all that it has.
    """
    everything = trace.device or trace.host
    if not everything:
        raise InputError("holds no step", where=trace.name)
    first, last = min(one.start for one in everything), max(one.end for one in everything)
    if len(marked) > 1:
        queued = [(one.start, one.launched) for one in trace.device if one.launched is not None]
        of_last = [start for start, launched in queued if launched >= marked[-1].start]
        before = [start for start, launched in queued if launched < marked[-1].start]
        if before and of_last:
            return [(min(before), min(of_last))], len(marked) - 1
    return [(first, last)], max(1, len(marked))


def _calls(trace: Trace, windows: Sequence[Interval]) -> list[Event]:
    """The collectives within the windows, in order."""
    events = trace.device if trace.device else trace.marks
    start, end = windows[0][0], windows[-1][1]
    found = [one for one in events if parts.is_collective(one.name) and start <= one.start < end]
    if trace.device:
        return [one for one in found if one.kind == "kernel"]
    sizes = defaultdict[str, list[int]](list)
    for operation, n_bytes in trace.collectives:
        sizes[parts.collective(operation)].append(n_bytes)
    counts = Counter(parts.collective(one.name) for one in found)
    known = {operation for operation, each in sizes.items() if len(each) == counts[operation]}
    queues = {operation: iter(sizes[operation]) for operation in known}
    return [
        one._replace(n_bytes=next(queues[operation]) if operation in known else None)
        for one in found
        for operation in [parts.collective(one.name)]
    ]


def _arrivals(traces: Sequence[Trace], calls: Sequence[Sequence[Event]]) -> list[dict[Event, int]]:
    """When the last rank had come to each call, by the clock of each rank. Without calls that ranks do not share."""
    found: list[dict[Event, int]] = [{} for _ in traces]
    by_rank = [defaultdict[tuple[str, str], list[Event]](list) for _ in traces]
    for mine, each in zip(by_rank, calls, strict=True):
        for one in each:
            mine[parts.collective(one.name), one.group].append(one)
    for key in {key for mine in by_rank for key in mine}:
        _, group = key
        taking_part = [rank for rank, mine in enumerate(by_rank) if key in mine] if group else range(len(traces))
        matching = [by_rank[rank][key] for rank in taking_part]
        if len({len(each) for each in matching}) > 1 or len(matching) < 2:
            continue  # groups of some ranks only, which the trace does not name
        offsets = [0] * len(matching)
        if traces[0].device:  # a collective ends on all devices at once, which tells how far clocks are apart
            offsets = [
                round(median(one.end - first.end for one, first in zip(each, matching[0], strict=True)))
                for each in matching
            ]
        for together in zip(*matching, strict=True):
            last = max(one.start - offset for one, offset in zip(together, offsets, strict=True))
            for rank, one, offset in zip(taking_part, together, offsets, strict=True):
                if last + offset < one.end:
                    found[rank][one] = max(one.start, last + offset)
    return found


def _divided(
    trace: Trace, steps: tuple[list[Interval], int], calls: Sequence[Event], arrivals: Mapping[Event, int]
) -> Division:
    windows, number = steps
    whole = union(windows)
    phases = _phases(trace, whole)
    in_flight = intersection(union((one.start, one.end) for one in calls), whole)
    claims = _of_device if trace.device else _of_host
    wanted = [*claims(trace, phases, calls, arrivals)]
    wanted += [(Part(parts.GAP, phase=phase), when) for phase, when in phases.items()]
    spans: dict[Part, list[Interval]] = {}
    for (part, _), taken in zip(wanted, divided(whole, [each for _, each in wanted]), strict=True):
        if taken:
            spans[part] = union([*spans[part], *taken]) if part in spans else taken
    computing = union(span for part, each in spans.items() if part.kind in parts.COMPUTE for span in each)
    return Division(
        rank=trace.rank,
        on_device=bool(trace.device),
        steps=number,
        windows=tuple(windows),
        spans=spans,
        hidden=intersection(in_flight, computing),
        communication=in_flight,
        called=tuple(_called(phases, calls, arrivals)),
        units=_units(trace, computing),
        marked=any(map(_is_step, trace.marks)),
    )


Phases = Mapping[str, Intervals]
Claims = Iterator[tuple[Part, Intervals]]


def _phases(trace: Trace, whole: Intervals) -> dict[str, list[Interval]]:
    """When the host is in each phase; all of the time, so that everything has one."""
    marked = defaultdict[str, list[Interval]](list)
    for one in trace.marks:
        if (phase := parts.phase_of_mark(one.name)) is not None:
            marked[phase].append((one.start, one.end))
    for one in trace.marks:  # DeepSpeed's optimizer steps within backward, and then gathers what it has updated
        if one.name == f"{parts.PHASE}bwd":
            stepped = marked.get("optimizer step", [])
            if inside := [start for start, end in stepped if one.start <= start and end <= one.end]:
                stepped.append((min(inside), one.end))
    if "backward" not in marked:  # a trace without marks still tells by autograd's nodes
        nodes = [(one.start, one.end) for one in trace.host if one.name.startswith("autograd::engine")]
        if nodes:
            marked["backward"] = nodes
    everywhere = union([*whole, *((one.start, one.end) for one in trace.host)])
    always = [(everywhere[0][0], everywhere[-1][1])]
    names = sorted(marked, key=lambda name: parts.ORDER.index(name) if name in parts.ORDER else len(parts.ORDER))
    given = divided(always, [*(union(marked[name]) for name in names), always])
    return dict(zip([*names, OTHER], given, strict=True))


class _Timeline:
    """Which phase a moment is in."""

    def __init__(self, phases: Phases) -> None:
        flat = sorted((start, end, phase) for phase, spans in phases.items() for start, end in spans)
        self._starts, self._flat = [one[0] for one in flat], flat

    def __call__(self, moment: int) -> str:
        index = bisect_right(self._starts, moment) - 1
        return self._flat[index][2] if index >= 0 and moment < self._flat[index][1] else OTHER


def _within(spans: Intervals, moment: int) -> bool:
    index = bisect_right(spans, (moment, 1 << 62)) - 1
    return index >= 0 and moment < spans[index][1]


def _of_device(trace: Trace, phases: Phases, calls: Sequence[Event], arrivals: Mapping[Event, int]) -> Claims:
    phase_at = _Timeline(phases)
    recomputing = union((one.start, one.end) for one in trace.marks if one.name == parts.RECOMPUTE)
    found = defaultdict[Part, list[Interval]](list)
    for one in trace.device:
        queued = one.start if one.launched is None else one.launched
        recomputed = bool(recomputing) and _within(recomputing, queued)
        part = parts.kind_of_device(one.name, one.kind, phase_at(queued), recomputed=recomputed)
        if part.kind != parts.EXPOSED:
            found[part].append((one.start, one.end))
    for kind in parts.COMPUTE:
        yield from ((part, union(spans)) for part, spans in found.items() if part.kind == kind)
    yield from _of_calls(phase_at, calls, arrivals)
    yield from ((part, union(spans)) for part, spans in found.items() if part.kind == parts.COPIES)
    yield Part(parts.DATA, phase="loading"), phases.get("loading", [])


def _of_host(trace: Trace, phases: Phases, calls: Sequence[Event], arrivals: Mapping[Event, int]) -> Claims:
    phase_at, thread = _Timeline(phases), _training_thread(trace)
    yield Part(parts.DATA, phase="loading"), phases.get("loading", [])
    functional = [one for one in trace.host if one.thread == thread and parts.waits(one.name)]
    marked = [one for one in trace.marks if one.name == parts.WAIT]
    waits = union((one.start, one.end) for one in (*marked, *functional))
    yield from _of_calls(phase_at, calls, arrivals, waits)
    for since, until in waits:  # a wait begins before gloo's thread does, and ends after it
        waited = [one for one in calls if one.start < until and since < one.end]
        operation = parts.collective(waited[-1].name) if waited else "collectives"
        yield Part(parts.EXPOSED, operation, phase_at(since)), [(since, until)]
    recomputing = union((one.start, one.end) for one in trace.marks if one.name == parts.RECOMPUTE)
    yield Part(parts.RECOMPUTED, phase="backward"), recomputing
    yield Part(parts.OPTIMIZER, phase="optimizer step"), phases.get("optimizer step", [])
    found = defaultdict[str, list[Interval]](list)
    operators = [one for one in trace.host if one.thread == thread and parts.computes(one.name)]
    labelled = (((one.start, one.end), parts.kind_of_host(one.name)) for one in operators)
    for span, kind in innermost(labelled):
        found[kind].append(span)
    # Attention is made of products and the like, where no kernel does it at once.
    found[parts.ATTENTION] = [(one.start, one.end) for one in operators if parts.is_attention(one.name)]
    for kind in (parts.ATTENTION, parts.MATRIX, parts.COPIES, parts.ELEMENTWISE):
        spans = union(found[kind])
        for phase, when in phases.items():
            yield Part(kind, phase=phase), intersection(spans, when)
    # DDP waits for its collectives in C++, which marks nothing.
    unmarked = union(span for when in phases.values() if not intersection(waits, when) for span in when)
    yield from _of_calls(phase_at, calls, arrivals, unmarked)


def _of_calls(
    phase_at: _Timeline, calls: Iterable[Event], arrivals: Mapping[Event, int], within: Intervals | None = None
) -> Claims:
    """The calls, first as far as they wait for the last rank."""
    waiting, moving = defaultdict[Part, list[Interval]](list), defaultdict[Part, list[Interval]](list)
    for one in calls:
        operation = parts.collective(one.name)
        phase = phase_at(one.start if one.launched is None else one.launched)
        arrived = arrivals.get(one, one.start)
        moving[Part(parts.EXPOSED, operation, phase)].append((arrived, one.end))
        waiting[Part(parts.WAITING, operation, phase)].append((one.start, arrived))
    for part, spans in (*moving.items(), *waiting.items()):
        whole = union(spans)
        yield part, whole if within is None else intersection(whole, within)


def _training_thread(trace: Trace) -> str:
    """The thread that takes the steps; without marks, the one with most operators."""
    marked = next(filter(_is_step, trace.marks), None)
    return marked.thread if marked else Counter(one.thread for one in trace.host).most_common(1)[0][0]


def _called(phases: Phases, calls: Sequence[Event], arrivals: Mapping[Event, int]) -> Iterator[Called]:
    phase_at = _Timeline(phases)
    groups = defaultdict[tuple[str, str], list[Event]](list)
    for one in calls:
        groups[parts.collective(one.name), phase_at(one.start if one.launched is None else one.launched)].append(one)
    for (operation, phase), each in groups.items():
        sizes = [one.n_bytes for one in each]
        yield Called(
            operation=operation,
            phase=phase,
            calls=len(each),
            n_bytes=None if None in sizes else sum(size or 0 for size in sizes),
            in_flight=sum(one.end - one.start for one in each),
            transfer=sum(one.end - arrivals[one] for one in each) if all(one in arrivals for one in each) else None,
        )


def _units(trace: Trace, computing: Intervals) -> dict[str, int]:
    """Time of compute by class of unit: on a CPU while the unit runs, on a device what it queues."""
    marked = defaultdict[str, list[Interval]](list)
    for one in trace.marks:
        if one.name.startswith(parts.UNIT):
            marked[one.name.removeprefix(parts.UNIT)].append((one.start, one.end))
    if not trace.device:
        return {name: total(intersection(union(spans), computing)) for name, spans in marked.items()}
    ranges = {name: union(spans) for name, spans in marked.items()}
    return {
        name: total(
            union((one.start, one.end) for one in trace.device if one.launched and _within(spans, one.launched))
        )
        for name, spans in ranges.items()
    }
