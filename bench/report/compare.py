"""Two runs of one matrix, attempt by attempt: what is slower or larger, what fails now, what is missing. Pure."""

import json
import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue

from bench.errors import InputError
from bench.records.base import Device
from bench.records.calibration import Calibration
from bench.records.cell import Attempt, Cell, Regime
from bench.records.figures import PEAK_ALLOCATED
from bench.records.json_diff import differing_keys, flat
from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import RankOk
from bench.records.sources import differing
from bench.report.controlled import settings_of
from bench.report.doubts import doubts
from bench.report.figures import merged
from bench.report.implausible import disturbances_of
from bench.report.naming import row_name
from bench.report.rows import Row, Summary
from bench.report.summary import row_of, summarize
from bench.statistics.intervals import Interval, student_t
from bench.statistics.launches import ENOUGH_DEGREES, HalfWidth, LaunchVariation, mean_step_s
from bench.statistics.ratio import (
    ALARM_CONFIDENCE,
    Ratio,
    Steps,
    means_half_width,
    ratio_of_means,
    shown_by,
    typical_of_launches,
    typical_ratios,
)
from bench.statistics.tail import Tail, tails
from bench.statistics.verdict import MARGIN, RateRatio, Speed, rate_ratio, speed
from bench.units import UNKNOWN

MEMORY_MARGIN = 0.02
"""Share by which the peaks of two attempts may differ and count as the same."""
GRANULE_BYTES = 2 * 2**20
"""The same in bytes, for small models: memory comes in pieces of this size, which are a segment of CUDA's caching
allocator and a huge page of a CPU."""
HEAP_BLOCK_BYTES = 32 * 2**20
"""By so much the peaks of two launches on a CPU may differ by chance, unless repeated launches show how much they do:
malloc serves blocks of up to this size from the heap, and keeps the gaps that freed ones leave."""
MAX_NEAREST = 100
"""Cells of one run for which the most similar cell of the other run is searched."""

Launches = Sequence[Result]
"""All launches of one attempt."""
Space = Literal["SAME", "LESS", "MORE", "UNCLEAR", "n/a"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One attempt that was measured in both runs."""

    name: str
    base: Row
    head: Row
    ratio: Ratio | None
    """Of the step's time, head to base; None when a run holds too few samples. See `of_means_alone`."""
    means: RateRatio
    """Of the mean steps, head to base, by the rule of the report's ratios."""
    launches_vary: float
    """How many times as long the mean step may be because launches of the same code vary."""
    speed: Speed
    space: Space
    """By the mean of the launches' peaks of allocated memory, of the worst rank of each."""
    unlike: tuple[str, ...]
    """Differences that are no change of the code: machine, environment, regime, threads, isolation."""
    sources: tuple[str, ...] = ()
    """Source files that differ; none where a run does not know its sources."""
    tail: Tail | None = None
    """The slow steps of both; None like ``ratio``."""
    disturbed: str = ""
    """``head: ...``: what the machine recorded beside the slower run, and not beside the other one. It may be why steps
    are slow, so they decide nothing."""
    spoiled: str = ""
    """Why the figures of head are wrong, where those of base are not."""

    @property
    def of_means_alone(self) -> bool:
        """Whether no steps of a side are known, so that ``ratio`` is one of mean steps."""
        return not (self.base.sampled and self.head.sampled)

    @property
    def launched(self) -> bool:
        """Whether `bench` launched a side, and so can launch more."""
        return not (self.base.source and self.head.source)

    @property
    def decides(self) -> Interval | None:
        """Of ``ratio``: what the verdict on the typical step rests on."""
        if self.ratio is None:
            return None
        return self.ratio.interval if self.speed == "SAME" else self.ratio.alarm

    @property
    def tail_changed(self) -> bool:
        """Whether the slow steps differ, or are why the verdict is not SAME."""
        return self.tail is not None and (
            self.tail.more
            or self.tail.fewer
            or (self.speed == "UNCLEAR" and bool(self.tail.base.indices or self.tail.head.indices))
        )

    def slower(self, threshold: float) -> bool:
        """Whether the step, or its tail, is longer by more than ``threshold``."""
        word = speed(self.ratio, threshold, None if self.disturbed else self.tail)
        return word == "SLOWER TAIL" or (word == "SLOWER" and not self.disturbed.startswith("head"))

    def undecided(self, threshold: float) -> bool:
        """Whether it may or may not be longer by ``threshold``. That it is not needs no more confidence than SAME."""
        if self.ratio is None:
            return self.speed == "UNCLEAR"
        reaches = self.ratio.interval[1] > 1 + threshold or self.ratio.of_means > 1 + threshold
        return reaches and not self.slower(threshold)

    def may_hide_a_regression(self, threshold: float) -> bool:
        """Whether it is undecided although the mean step is longer by more than ``threshold``, and by more than
        launches of the same code differ by; or although the typical step is SLOWER, beside something else."""
        longer = self.means.estimate > max(1 + threshold, self.launches_vary)
        return self.undecided(threshold) and (longer or speed(self.ratio, threshold) == "SLOWER")


@dataclass(frozen=True, kw_only=True)
class Changed:
    """An attempt with another outcome in head than in base."""

    name: str
    base: Row
    head: Row


@dataclass(frozen=True, kw_only=True)
class OnlyInOne:
    """An attempt that only one of the runs has."""

    name: str
    run: Literal["base", "head"]
    row: Row
    nearest: str
    """What the other run has instead."""
    cell_gone: bool
    """The other run has no result of its cell."""
    searched: bool
    """Whether one of the runs searched for the batch of this cell. Two searches may try different batches."""


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """The comparison of two runs."""

    pairs: tuple[Pair, ...]
    unmeasured: int
    """Attempts with the same outcome in both runs that is not a measurement."""
    changed: tuple[Changed, ...]
    only_in_one: tuple[OnlyInOne, ...]
    noise: float | None
    """Given by the user."""
    variation: LaunchVariation | None
    """What is known of the variation between launches."""
    margin: float

    @property
    def unlike(self) -> tuple[str, ...]:
        """All differences between the pairs that are no change of the code."""
        return tuple(dict.fromkeys(difference for pair in self.pairs for difference in pair.unlike))

    @property
    def sources(self) -> tuple[str, ...]:
        """All source files that differ between the pairs."""
        return tuple(sorted({file for pair in self.pairs for file in pair.sources}))

    @property
    def never_measured(self) -> tuple[OnlyInOne, ...]:
        """Attempts that base measured and head should have. A search of head may have left out a batch."""
        return tuple(
            attempt
            for attempt in self.only_in_one
            if attempt.run == "base" and attempt.row.measured and (attempt.cell_gone or not attempt.searched)
        )

    def slower(self, threshold: float) -> list[Pair]:
        """Pairs whose step, or its tail, is longer by more than ``threshold``, with the confidence of an alarm."""
        return [pair for pair in self.pairs if pair.slower(threshold)]

    @property
    def broken(self) -> list[Changed]:
        """Attempts that succeeded in base and fail in head."""
        return [changed for changed in self.changed if changed.base.measured]

    def undecided(self, threshold: float) -> list[Pair]:
        """Pairs whose step may or may not be longer by ``threshold``."""
        return [pair for pair in self.pairs if pair.undecided(threshold)]


def compare_runs(
    base: Sequence[Result],
    head: Sequence[Result],
    *,
    searched: Iterable[str] = (),
    calibrations: Sequence[Calibration] = (),
    noise: float | None = None,
    margin: float | None = None,
    allow_unlike: bool = False,
) -> TwoRuns:
    """Compare ``head`` with ``base``. Attempts are matched by the content of their cell and by batch.

    Args:
        searched: ids of cells with a search's verdict. Cells with short attempts count as searched, too.
        calibrations: what `bench calibrate` learnt of the machine; used where neither run repeats launches.
        noise: standard deviation of a step's time between runs, as a share, instead of an estimate from the steps: see
            `ratio`.
        margin: share by which a step may change and count as the same; by default `MARGIN`.
        allow_unlike: compare runs of unlike machines, too.

    Raises:
        InputError: the machines are unlike, or no attempt is in both runs.
    """
    margin = MARGIN if margin is None else margin
    searched = {*searched, *(result.attempt.cell.id for result in (*base, *head) if result.attempt.short)}
    ours, theirs = _by_attempt(base), _by_attempt(head)
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    machines = dict.fromkeys(
        difference for before, after in both for difference in before[0].machine.unlike(after[0].machine)
    )
    if machines and not allow_unlike:
        raise InputError(
            "the runs were measured on unlike machines: " + "; ".join(machines),
            fix="--allow-unlike compares them nevertheless, and marks every figure",
        )
    if not both:
        raise InputError("no attempt is in both runs", fix=_why_none(base, head))
    summary = summarize([*base, *head])
    # A name is used for both runs, so it does not contain the machine.
    summary = replace(summary, columns=tuple(name for name in summary.columns if name != "machine"))
    of_base, of_head = summarize(base, calibrations), summarize(head, calibrations)
    variation = max((*of_base.variations, *of_head.variations), key=lambda known: known.degrees, default=None)
    rows = [(_row(summary, before, variation), _row(summary, after, variation)) for before, after in both]
    pairs = [(results, pair) for results, pair in zip(both, rows, strict=True) if pair[0].measured and pair[1].measured]
    steps = [(_steps(before), _steps(after)) for (before, after), _ in pairs]
    typical = [(typical_of_launches(before, noise), typical_of_launches(after, noise)) for before, after in steps]
    variation = variation or shown_by(typical)
    stated = [not all(row.sampled for row in pair) for _, pair in pairs]
    known = sum(alone or all(sides) for alone, sides in zip(stated, typical, strict=True))
    of_steps = typical_ratios(typical, noise, variation, margin, known)
    ratios = [
        ratio_of_means(_mean_steps_s(pair), _means_within(pair, noise), margin, known) if alone else ratio
        for (_, pair), alone, ratio in zip(pairs, stated, of_steps, strict=True)
    ]
    invalid = _invalid(of_base), _invalid(of_head)
    others = [(before, after) for before, after in rows if not (before.measured and after.measured)]
    return TwoRuns(
        pairs=tuple(
            _pair(row_name(summary, pair[0]), results, pair, ratio, tail, margin, noise, invalid)
            for (results, pair), ratio, tail in zip(pairs, ratios, tails(steps, noise, variation), strict=True)
        ),
        unmeasured=sum(before.outcome == after.outcome for before, after in others),
        changed=tuple(
            Changed(name=row_name(summary, before), base=before, head=after)
            for before, after in others
            if before.outcome != after.outcome
        ),
        only_in_one=(
            *_only_in_one(summary, "base", [ours[key] for key in ours if key not in theirs], head, searched),
            *_only_in_one(summary, "head", [theirs[key] for key in theirs if key not in ours], base, searched),
        ),
        noise=noise,
        variation=variation,
        margin=margin,
    )


def _row(summary: Summary, launches: Launches, variation: LaunchVariation | None = None) -> Row:
    """With the settings that both runs name."""
    return merged([row_of(result, settings_of(result, summary.columns), variation=variation) for result in launches])


def _by_attempt(results: Sequence[Result]) -> dict[tuple[str, int], Launches]:
    """In the order of ``results``. Where a batch was measured in full, its short attempt has nothing to add."""
    by_attempt: dict[tuple[str, int], dict[tuple[bool, int], Result]] = {}
    for result in results:
        attempt = result.attempt
        launches = by_attempt.setdefault((attempt.cell.id, attempt.batch_per_rank), {})
        launches[attempt.short, attempt.launch] = result
    return {
        key: [result for (short, _), result in sorted(launches.items()) if short == min(launches)[0]]
        for key, launches in by_attempt.items()
    }


def _steps(launches: Launches) -> list[Steps]:
    """Of each launch that was measured."""
    outcomes = [result.outcome for result in launches]
    return [[rank.step_times_s for rank in outcome.ranks] for outcome in outcomes if isinstance(outcome, Ok)]


def _pair(
    name: str,
    results: tuple[Launches, Launches],
    rows: tuple[Row, Row],
    ratio: Ratio | None,
    tail: Tail | None,
    margin: float,
    noise: float | None,
    invalid: tuple[Mapping[tuple[str, int], str], ...],
) -> Pair:
    (base, head), (ours, theirs) = results, rows
    spoiled = [reasons.get((base[0].attempt.cell.id, ours.batch_per_rank)) for reasons in invalid]
    before_s, after_s = _mean_steps_s(rows)
    within = _means_within(rows, noise)
    means = rate_ratio(after_s / before_s, within)
    same = [result.outcome for result in base] == [result.outcome for result in head]
    if same and ratio is not None:  # the same measurement
        ratio = replace(ratio, interval=(1.0, 1.0), alarm=(1.0, 1.0), as_wide_as_spread=False)
        means = RateRatio(1.0, (1.0, 1.0), (1.0, 1.0), means.basis)
    word = speed(ratio, margin)
    if word == "SLOWER" or (word != "FASTER" and tail is not None and tail.more):
        slower = "head"
    elif word == "FASTER" or (tail is not None and tail.fewer):
        slower = "base"
    else:  # a gate may have another margin
        slower = "head" if means.estimate > 1 else "base"
    disturbed = _disturbed(slower, *((head, base) if slower == "head" else (base, head)))
    if not disturbed:
        word = speed(ratio, margin, tail)
    elif word in ("SLOWER", "FASTER"):
        word = "UNCLEAR"
    before, after = _first(base), _first(head)
    return Pair(
        name=name,
        base=ours,
        head=theirs,
        ratio=ratio,
        means=means,
        launches_vary=within.launches_vary,
        speed="SAME" if same else word,
        space=_space(ours, theirs),
        unlike=(
            *base[0].machine.unlike(head[0].machine),
            *base[0].machine.differences(head[0].machine),
            *_ran_unlike(before, after),
            *(f"{run} is invalid: {why}" for run, why in zip(("base", "head"), spoiled, strict=True) if why),
        ),
        sources=differing(before.sources, after.sources) if before.sources and after.sources else (),
        tail=tail,
        disturbed=disturbed,
        spoiled=(not spoiled[0] and spoiled[1]) or "",
    )


def _mean_steps_s(rows: tuple[Row, Row]) -> tuple[float, float]:
    """Of both runs: what their launches show, or what follows from the throughput that a source states."""
    base, head = (
        mean_step_s(row.measured.launches) if row.measured and row.measured.launches else row.batch_global / row.rate
        for row in rows
    )
    return base, head


def _means_within(rows: tuple[Row, Row], noise: float | None) -> HalfWidth:
    """How far the ratio of the mean steps may be off."""
    base, head = (row.measured for row in rows)
    assert base
    assert head
    # The launches of this machine say nothing of figures from elsewhere.
    variation = None if any(row.source for row in rows) else head.variation
    return means_half_width(base.launches, head.launches, noise, variation)


def _invalid(summary: Summary) -> dict[tuple[str, int], str]:
    """Why figures of a run are wrong, by cell and batch."""
    return {
        (doubt.row.id.cell[0], doubt.row.batch_per_rank): doubt.reason.rstrip(".")
        for doubt in doubts(summary)
        if doubt.row and doubt.grade == "invalid"
    }


def _disturbed(run: str, launches: Launches, others: Launches) -> str:
    """What disturbed ``launches``, if nothing disturbed ``others``: ``head: ...``, or nothing."""
    found = disturbances_of(result.conditions for result in launches)
    return f"{run}: {found[0]}" if found and not disturbances_of(result.conditions for result in others) else ""


def _first(launches: Launches) -> Result:
    """The first launch that was measured."""
    return next((result for result in launches if isinstance(result.outcome, Ok)), launches[0])


def _space(base: Row, head: Row) -> Space:
    """Of the mean peaks of the launches: their largest grows with their number."""
    peaks = [_peaks(base), _peaks(head)]
    if not all(peaks):
        return "n/a"
    ours, theirs = map(statistics.fmean, peaks)
    if abs(theirs - ours) <= max(MEMORY_MARGIN * abs(ours), GRANULE_BYTES):
        return "SAME"
    if abs(theirs - ours) <= _chance_bytes(peaks, base.device):
        return "UNCLEAR"
    return "MORE" if theirs > ours else "LESS"


def _peaks(row: Row) -> list[float]:
    """The peak of each measured launch, of its worst rank."""
    found = (launch.measured.of(PEAK_ALLOCATED) for launch in row.each if launch.measured)
    return [float(peak) for peak in found if peak is not None]


def _chance_bytes(peaks: Sequence[Sequence[float]], device: Device) -> float:
    """By how much the peaks of two sides may differ although nothing has changed: by the variation between launches,
    with the confidence of an alarm. Without enough launches: `HEAP_BLOCK_BYTES` on a CPU, and nothing on a GPU, whose
    tensors are counted."""
    degrees = sum(len(side) - 1 for side in peaks)
    if degrees < ENOUGH_DEGREES:
        return HEAP_BLOCK_BYTES if device == "cpu" else 0.0
    squares = sum((peak - statistics.fmean(side)) ** 2 for side in peaks for peak in side)
    error = math.sqrt(squares / degrees * sum(1 / len(side) for side in peaks))
    return student_t(degrees, ALARM_CONFIDENCE) * error


def _ran_unlike(base: Result, head: Result) -> Iterator[str]:
    """Observed differences between attempts with the same settings."""
    if base.isolation != head.isolation:
        yield f"isolation: {base.isolation} against {head.isolation}"
    if base.attempt.short != head.attempt.short:
        yield "steps: a few against all" if base.attempt.short else "steps: all against a few"
    if isinstance(base.outcome, Ok) and isinstance(head.outcome, Ok):
        for ours, theirs in zip(base.outcome.ranks, head.outcome.ranks, strict=True):
            if ours.threads != theirs.threads:
                yield f"threads of a rank: {ours.threads} against {theirs.threads}"
            before = {**_known(ours.regime, theirs.regime), **_did(ours, base.attempt)}
            after = {**_known(theirs.regime, ours.regime), **_did(theirs, head.attempt)}
            yield from (f"{field}: {before[field]} against {after[field]}" for field in differing_keys(before, after))


def _did(rank: RankOk, attempt: Attempt) -> dict[str, JsonValue]:
    """What decides of an observed script's steps how much they are."""
    if (seen := rank.observed) is None:
        return {}
    steps = len(rank.step_times_s)
    taken = seen.taken(attempt.samples_of_rank(steps))
    return {
        "optimizer": seen.optimizer,
        "torch.compile": seen.compiled,
        "samples per step": None if taken is None else taken / steps,
        "forwards per step": None if seen.forwards is None else seen.forwards / steps,
    }


def _known(regime: Regime, other: Regime) -> dict[str, JsonValue]:
    """The attributes of a regime, without those of its step that were not observed on both sides."""
    known = {**regime.model_dump(exclude={"matmul_shares"}), "matmul_dtype": regime.matmul_dtype}
    known["attention_kernels"] = ", ".join(regime.attention_kernels or ()) or None
    of_step = ("matmul_dtype", "attention_kernels", "adam")  # float32_products says with null that they are exact
    return {
        name: value for name, value in known.items() if name not in of_step or None not in (value, getattr(other, name))
    }


def _only_in_one(
    summary: Summary,
    run: Literal["base", "head"],
    alone: Sequence[Launches],
    others: Sequence[Result],
    searched: Container[str],
) -> Iterator[OnlyInOne]:
    """Attempts without a counterpart in the other run, with the most similar thing that it has."""
    if not alone:
        return
    cells = {other.attempt.cell.id: other.attempt.cell for other in others}
    batches: dict[str, dict[str, None]] = {}
    for other in others:
        batches.setdefault(other.attempt.cell.id, {})[str(other.attempt.batch_per_rank)] = None
    candidates, nearest = [_fields(cell) for cell in cells.values()], dict[str, str]()
    for launches in alone:
        cell, row = launches[0].attempt.cell, _row(summary, launches)
        cell_id = cell.id
        if cell_id not in cells and cell_id not in nearest and len(nearest) < MAX_NEAREST:
            nearest[cell_id] = _nearest(cell, candidates)
        has = f"this cell at batch {', '.join(batches[cell_id])}" if cell_id in cells else nearest.get(cell_id, UNKNOWN)
        yield OnlyInOne(
            name=row_name(summary, row),
            run=run,
            row=row,
            nearest=has,
            cell_gone=cell_id not in cells,
            searched=cell_id in searched,
        )


def _why_none(base: Sequence[Result], head: Sequence[Result]) -> str:
    if not base or not head:
        return f"{'base' if not base else 'head'} holds no results"
    cells = {result.attempt.cell.id for result in base}
    shared = next((result for result in head if result.attempt.cell.id in cells), None)
    if shared is not None:
        return "their cells are the same, but their batches differ"
    differences = _nearest(head[0].attempt.cell, [_fields(result.attempt.cell) for result in base])
    return f"of the first run, the cell that is most like the first cell of the second run has {differences}"


def _fields(cell: Cell) -> Mapping[str, JsonValue]:
    return flat(cell.model_dump(mode="json"))


def _nearest(cell: Cell, others: Sequence[Mapping[str, JsonValue]]) -> str:
    """In words, how ``cell`` differs from the most similar one of the cells with these fields."""
    before = _fields(cell)
    after = min(others, key=lambda other: len(differing_keys(before, other)))

    def value(fields: Mapping[str, JsonValue], name: str) -> str:
        return json.dumps(fields[name], ensure_ascii=False) if name in fields else "none"

    return "; ".join(
        f"{name} {value(after, name)} instead of {value(before, name)}" for name in differing_keys(before, after)
    )
