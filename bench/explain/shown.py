"""An explanation as tables and bars: for the terminal, for markdown, and for the page in `picture`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench import units
from bench.explain.advice import Advice
from bench.explain.divide import Called, Division
from bench.explain.parts import PHASES
from bench.explain.waterfall import Bar, Explained, Waterfall
from bench.records.peak import ACTIVATIONS, BACKWARD, BUFFERS
from bench.report.tables.table import Column, Table, table_of

LONGEST = 24
"""Characters of the longest bar."""
SMALL = 0.005
"""Parts below this share of the step are one row."""


def sentences(one: Explained) -> list[str]:
    """What the step is, and how far the profiler changes it."""
    pace = one.pace
    largest = max(one.parts_s.items(), key=lambda item: item[1])
    said = [
        f"{one.name}: a step takes {units.ms(one.step_s)} ms; the largest part is {largest[0].name},"
        f" {units.percent(largest[1] / one.profiled_s)} of the profiled one."
    ]
    if len(one.divisions) > 1:
        why = (
            "the critical rank of the measured steps" if pace.rank == one.critical else "which has most work of its own"
        )
        said.append(f"The parts are those of rank {pace.rank}, {why}.")
    if unmarked := [str(division.rank) for division in one.divisions if not division.marked]:
        said.append(
            f"The traces of ranks {', '.join(unmarked)} mark no steps (ProfilerStep): all of each counts as one step."
        )
    if one.overhead is not None and one.unprofiled_s is not None:
        more = "more" if one.overhead >= 0 else "less"
        said.append(
            f"Profiled, a step takes {units.ms(one.profiled_s)} ms (mean of {pace.steps}),"
            f" {units.percent(abs(one.overhead))} {more} than the {units.ms(one.unprofiled_s)} ms just before, in the"
            " same processes."
        )
    if all(called.transfer is None for called in pace.called) and pace.called:
        said.append("Waiting for the last rank is part of exposed communication: not all ranks' traces tell.")
    return said


def step(one: Explained) -> Table:
    """The parts of the step, which sum to it, on the rank that paces it and as a range over ranks."""
    parts: dict[str, float] = {}
    for part, took_s in one.parts_s.items():
        name = part.name if took_s >= SMALL * one.profiled_s else "smaller parts"
        parts[name] = parts.get(name, 0.0) + took_s
    rows = [*sorted(parts.items(), key=lambda row: -row[1]), *one.corrections_s.items(), ("step", one.step_s)]
    scale = max(abs(took_s) for _, took_s in rows[:-1])

    def share(name: str, took_s: float) -> str:
        return units.percent(took_s / one.profiled_s) if name in parts else ""

    columns = [
        Column[tuple[str, float]]("part", lambda row: row[0], bold=lambda row: row[0] == "step"),
        Column[tuple[str, float]]("ms", lambda row: _ms(row[1]), numeric=True),
        Column[tuple[str, float]]("share", lambda row: share(row[0], row[1]), numeric=True),
        Column[tuple[str, float]]("", lambda row: "" if row[0] == "step" else bar(row[1], scale)),
        *([_over_ranks(one)] if len(one.divisions) > 1 else []),
    ]
    notes = ["Shares are of the profiled step."] if one.corrections_s else []
    return table_of(f"One step of {one.name}", rows, columns, notes=notes)


def _over_ranks(one: Explained) -> Column[tuple[str, float]]:
    sums = [_by_name(division) for division in one.divisions]

    def text(row: tuple[str, float]) -> str:
        if not any(row[0] in each for each in sums):
            return ""
        return " / ".join(_ms(each.get(row[0], 0.0)) for each in sums)

    return Column("ms by rank", text, numeric=True)


def _by_name(division: Division) -> dict[str, float]:
    sums = {"step": division.step / 1e9}
    for part, took in division.parts.items():
        sums[part.name] = sums.get(part.name, 0.0) + took / 1e9
    return sums


def collectives(one: Explained) -> Table | None:
    """Each collective by phase; None where there is none."""
    division = one.pace
    if not division.called:
        return None
    exposed: dict[tuple[str, str], float] = {}
    for part, took in division.parts.items():
        if part.detail:
            exposed[part.detail, part.phase] = exposed.get((part.detail, part.phase), 0.0) + took / 1e9
    steps = division.steps
    columns = [
        Column[Called]("collective", lambda row: row.operation),
        Column[Called]("phase", lambda row: row.phase),
        Column[Called]("calls", lambda row: f"{row.calls / steps:g}", numeric=True),
        Column[Called]("MiB", lambda row: _mib(row.n_bytes, steps), numeric=True),
        Column[Called]("in flight ms", lambda row: _ms(row.in_flight / steps / 1e9), numeric=True),
        Column[Called]("exposed ms", lambda row: _ms(exposed.get((row.operation, row.phase), 0.0)), numeric=True),
        Column[Called]("transfer ms", lambda row: _transfer(row, steps), numeric=True),
        Column[Called]("GiB/s", _rate, numeric=True),
    ]
    rows = sorted(division.called, key=lambda row: -row.in_flight)
    note = "Of one step. GiB/s: the larger side of the collective, over the transfer where it is known."
    return table_of(f"Collectives of rank {division.rank} of {one.name}", rows, columns, notes=[note])


def by_unit(one: Explained) -> Table | None:
    """Compute by class of unit; None where no unit is marked."""
    division = one.pace
    rows = [(name, took / division.steps / 1e9) for name, took in division.units.items()]
    if not rows:
        return None
    columns = [
        Column[tuple[str, float]]("unit", lambda row: row[0]),
        Column[tuple[str, float]]("ms", lambda row: _ms(row[1]), numeric=True),
    ]
    return table_of(f"Forward by class of unit of {one.name}, recomputation included", rows, columns)


def memory(one: Explained) -> Table | None:
    """What lives at the peak, beside what a plan expects then; None where it was not counted."""
    if one.memory is None:
        return None
    found, planned = one.memory.parts, dict(one.planned)
    in_activations = [name for name in found if name.startswith(ACTIVATIONS)]
    buffers = found.get(BUFFERS, 0)
    rows: list[tuple[str, int, float | None]] = [
        (name, found[name], planned.pop(name, None)) for name in found if name not in (*in_activations, BUFFERS)
    ]
    rows.append((BUFFERS, buffers, planned.pop("buckets", None)))
    rows.append((ACTIVATIONS, sum(found[name] for name in in_activations), planned.pop(ACTIVATIONS, None)))
    rows += [(name, 0, size) for name, size in planned.items() if size >= SMALL * one.memory.total_bytes]
    rows = sorted((row for row in rows if row[1] or row[2]), key=lambda row: -row[1])
    at = [name for name, *_ in rows].index(ACTIVATIONS) + 1 if in_activations else 0
    rows[at:at] = [(f"… {name}", found[name], None) for name in in_activations]
    rows.append(("peak", one.memory.total_bytes, sum(one.planned.values()) or None))
    columns = [
        Column[tuple[str, int, float | None]]("part", lambda row: row[0], bold=lambda row: row[0] == "peak"),
        Column[tuple[str, int, float | None]]("MiB", lambda row: _mib(row[1], 1), numeric=True),
        Column[tuple[str, int, float | None]]("planned MiB", lambda row: _mib(row[2], 1), numeric=True),
    ]
    unused, on_cpu = one.memory.unused_bytes, not one.pace.on_device
    anonymous = "gradients of activations, and buffers: a plan has them in activations, buckets and transport"
    notes = [
        f"Of the rank with the highest peak, which is in {PHASES.get(one.memory.when, one.memory.when)}.",
        *([f"{BACKWARD[0].upper()}{BACKWARD[1:]}: {anonymous}."] if BACKWARD in found else []),
        *(["Tensors alone: the memory of a process, which reports show on a CPU, is more."] if on_cpu else []),
        *([f"Fragmentation: the allocator holds {_mib(unused, 1)} MiB more."] if unused is not None else []),
    ]
    return table_of(f"Memory at the peak of {one.name}", rows, columns, notes=notes)


def difference(found: Waterfall) -> Table:
    """The bars from one step to the other. Small ones are summed up in one row."""
    bars = rows_of(found)
    scale = max((abs(one.difference_s) for one in bars), default=0.0)
    columns = [
        Column[Bar]("part", lambda one: one.name, bold=lambda one: one.name == "step"),
        Column[Bar](f"{found.before.name} ms", lambda one: _ms(one.before_s), numeric=True),
        Column[Bar](f"{found.after.name} ms", lambda one: _ms(one.after_s), numeric=True),
        Column[Bar]("difference ms", lambda one: f"{one.difference_s * 1e3:+.2f}", numeric=True),
        Column[Bar]("", lambda one: "" if one.name == "step" else bar(one.difference_s, scale)),
        Column[Bar]("noise", lambda one: "within" if one.noise else ""),
    ]
    total = Bar("step", found.before.step_s, found.after.step_s)
    return table_of("Waterfall", [*bars, total], columns)


def rows_of(found: Waterfall) -> list[Bar]:
    """The bars of a waterfall, without what would be too short to see: that is one bar."""
    least = SMALL * max(found.before.step_s, found.after.step_s)
    shown = [one for one in found.bars if abs(one.difference_s) >= least]
    rest = [one for one in found.bars if one not in shown]
    if rest:
        sums = sum(one.before_s for one in rest), sum(one.after_s for one in rest)
        shown.append(Bar("smaller differences", *sums, noise=True))
    return shown


def bar(value: float, scale: float) -> str:
    """Blocks as long as ``value``; negative ones are light."""
    length = round(LONGEST * abs(value) / scale) if scale else 0
    return ("█" if value >= 0 else "░") * length


def tables(one: Explained) -> list[Table]:
    return [table for table in (step(one), collectives(one), by_unit(one), memory(one)) if table is not None]


def _ms(took_s: float) -> str:
    return f"{took_s * 1e3:.2f}"


def _mib(n_bytes: float | None, steps: int) -> str:
    return units.UNKNOWN if n_bytes is None else f"{n_bytes / steps / 2**20:.2f}"


def _transfer(row: Called, steps: int) -> str:
    return units.UNKNOWN if row.transfer is None else _ms(row.transfer / steps / 1e9)


def _rate(row: Called) -> str:
    took = row.in_flight if row.transfer is None else row.transfer
    return units.UNKNOWN if row.n_bytes is None or not took else units.rate(row.n_bytes / took * 1e9 / units.GIB)


class Tried(NamedTuple):
    """What a setting brought."""

    step_s: float
    """For as many samples as the step of now."""
    ratio: float
    """Its throughput divided by that of the cell as it is."""
    interval: tuple[float, float]
    """Of the ratio: what the verdict rests on."""
    verdict: str


def advised(
    found: Sequence[Advice], one: Explained, now_s: float | None = None, tried: Mapping[str, Tried] | None = None
) -> Table:
    """What to try.

    Args:
        now_s: the step of the cell as it is, measured beside ``tried``.
        tried: by words, what each setting brought. None: nothing was tried; without an entry, an attempt failed.
    """
    columns = [
        Column[Advice]("setting", lambda each: each.words),
        Column[Advice]("gains at most ms", lambda each: _ms(each.bound_s), numeric=True),
        Column[Advice]("of the step", lambda each: units.percent(each.bound_s / one.profiled_s), numeric=True),
        Column[Advice]("why", lambda each: each.why, prose=True),
    ]
    if tried is None:
        note = "A bound is all of the profiled time that the setting addresses. Only a measurement tells: --try."
        axis = "To measure one of them yourself: bench run MATRIX --axis SETTING."
        return table_of("Advice", found, columns, notes=[note, axis])

    def of(each: Advice, figure: Callable[[Tried], str]) -> str:
        return figure(tried[each.words]) if each.words in tried else units.UNKNOWN

    columns[3:3] = [
        Column[Advice]("step ms", lambda each: of(each, lambda its: units.ms(its.step_s)), numeric=True),
        Column[Advice]("gained ms", lambda each: of(each, lambda its: _gained(now_s, its.step_s)), numeric=True),
        Column[Advice]("ratio", lambda each: of(each, lambda its: f"{its.ratio:.2f}×"), numeric=True),
        Column[Advice]("interval", lambda each: of(each, lambda its: "{:.2f} to {:.2f}".format(*its.interval))),
        Column[Advice]("verdict", lambda each: of(each, lambda its: its.verdict)),
    ]
    note = "Ratio: throughput with the setting, divided by that without it. A verdict is that of a report."
    return table_of("Advice, tried", found, columns, notes=[note], name=lambda each: each.words)


def _gained(before_s: float | None, after_s: float) -> str:
    return units.UNKNOWN if before_s is None else f"{(before_s - after_s) * 1e3:+.2f}"
