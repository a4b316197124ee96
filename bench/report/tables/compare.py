"""The wording of `bench compare`: tables and sentences about two runs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.errors import one_line
from bench.records.figures import PEAK_ALLOCATED
from bench.records.sources import named
from bench.report.compare import GRANULE_BYTES, HEAP_BLOCK_BYTES, MEMORY_MARGIN, Pair, TwoRuns
from bench.report.implausible import disturbances_of
from bench.report.naming import ends, short_reason
from bench.report.rows import Row
from bench.report.tables.speedup import fewest_launches, how_launches_vary
from bench.report.tables.table import Column, Number, Table, table_of
from bench.statistics.ratio import ALARM_CONFIDENCE, ENOUGH_PAIRS, QUIET
from bench.statistics.tail import SLOW, SlowSteps
from bench.statistics.verdict import MORE_LAUNCHES, speed
from bench.units import UNKNOWN, counted, gib, ms, percent, size

MARK = " (!)"
"""Added to every figure of a pair that differs in more than the code."""
MAX_RANGES = 8
"""How many slow steps, or ranges of them, a sentence lists."""


def summary_line(runs: TwoRuns) -> str:
    """The comparison in one line."""
    n_base = sum(attempt.run == "base" for attempt in runs.only_in_one)
    others = {
        "Measured in neither run": runs.unmeasured,
        "Outcome changed": len(runs.changed),
        "Only in base": n_base,
        "Only in head": len(runs.only_in_one) - n_base,
    }
    return (
        f"{counted(len(runs.pairs), 'attempt')} measured in both runs."
        f" Step: {_counts(pair.speed for pair in runs.pairs)}. Memory: {_counts(pair.space for pair in runs.pairs)}."
        f"{''.join(f' {words}: {number}.' for words, number in others.items() if number)}"
    )


def warning(runs: TwoRuns) -> str | None:
    """What a reader must know first; None when the pairs differ in nothing but the code."""
    if not runs.unlike:
        return None
    differences = "; ".join(map(one_line, runs.unlike))
    return f"UNLIKE: figures marked{MARK} differ in more than the code and do not measure its change: {differences}."


def changed_sources(runs: TwoRuns) -> str | None:
    """What the comparison measures; None where no source is known to differ."""
    return f"Sources that differ between base and head: {one_line(named(runs.sources))}." if runs.sources else None


def disturbed(runs: TwoRuns) -> str | None:
    """Which attempts the machine disturbed, of each run; None where it disturbed none."""
    sentences = []
    for name, rows in (("base", [pair.base for pair in runs.pairs]), ("head", [pair.head for pair in runs.pairs])):
        of_rows = [disturbances_of(launch.conditions for launch in row.each) for row in rows]
        if found := [words[0].rstrip(".") for words in of_rows if words]:
            sentences.append(f"{len(found)} of {counted(len(rows), 'attempt')} of {name}, such as: {found[0]}")
    return f"Disturbed, which may be why steps differ: {'; '.join(sentences)}." if sentences else None


def regressions(runs: TwoRuns, threshold: float) -> list[str]:
    """A sentence for each attempt whose step or tail is longer by more than ``threshold``, that succeeded before and
    fails or is invalid now, or of which a larger share of launches fails.

    The whole interval has to lie beyond the threshold, whatever the margin counts as the same. An attempt that head
    lacks counts unless a search may have left it out.
    """
    slower = [f"{pair.name}: {_how_much_longer(pair, threshold)}" for pair in runs.slower(threshold)]
    broken = [
        f"{changed.name}: was {changed.base.outcome} and is {changed.head.outcome}: {short_reason(changed.head.reason)}"
        for changed in runs.broken
    ]
    spoiled = [f"{pair.name}: was ok and is invalid: {pair.spoiled}" for pair in runs.pairs if pair.spoiled]
    gone = [
        f"{attempt.name}: was {attempt.row.outcome}, and head has no "
        + ("result of its cell" if attempt.cell_gone else "such batch")
        for attempt in runs.never_measured
    ]
    unsteady = [
        f"{pair.name}: {len(pair.head.failures)} of {counted(len(pair.head.each), 'launch')} failed, and"
        f" {len(pair.base.failures)} of {len(pair.base.each)} in base: {short_reason(pair.head.failures[0].reason)}"
        for pair in runs.pairs
        if len(pair.head.failures) * len(pair.base.each) > len(pair.base.failures) * len(pair.head.each)
    ]
    return slower + broken + spoiled + gone + unsteady


def _how_much_longer(pair: Pair, threshold: float) -> str:
    assert pair.ratio is not None
    if pair.tail is None or speed(pair.ratio, threshold) == "SLOWER":
        return f"its step takes {pair.ratio.estimate:.3f} times as long ({ends(pair.ratio.alarm, 3)})"
    head, base = slow_steps(pair.tail.head), slow_steps(pair.tail.base)
    mean = f"its mean step takes {pair.tail.of_means:.3f} times as long ({ends(pair.tail.interval, 3)})"
    return f"{head}; base: {base}; {mean}"


def unclear_regressions(runs: TwoRuns, threshold: float) -> list[str]:
    """A sentence for each attempt whose mean step is longer by more than ``threshold``, where neither the typical step
    nor the tail decides."""
    return [
        f"{pair.name}: its mean step takes {pair.means.estimate:.3f} times as long, and is UNCLEAR at"
        f" {percent(threshold)}{f' ({pair.disturbed})' if pair.disturbed else ''}:"
        f" {'measure again' if pair.launched else 'say with --noise how much it varies'}, or pass with --unclear pass"
        for pair in runs.pairs
        if pair.may_hide_a_regression(threshold)
    ]


def open_questions(runs: TwoRuns, threshold: float) -> list[str]:
    """Sentences on what keeps the gate from a decision: attempts that head lacks, and steps that are not clear."""
    missing, unclear = len(runs.never_measured), runs.undecided(threshold)
    sentences = []
    if missing:
        sentences.append(f"{counted(missing, 'attempt')} of base not measured in head")
    if unclear:
        at = f"{len(unclear)} of {counted(len(runs.pairs), 'attempt')} may be slower by more than {percent(threshold)}"
        few = runs.noise is None and any(
            pair.launched and pair.ratio and pair.ratio.basis != "launches" for pair in unclear
        )
        more = f"; more launches in both runs decide more ({MORE_LAUNCHES})" if few else ""
        sentences.append(f"{at}: the gate could not decide there{more}")
    return sentences


def tables(runs: TwoRuns) -> list[Table]:
    """The attempts in both runs, the tails and the outcomes that changed, and the attempts in only one run."""
    return [table for table in (_pairs(runs), _tails(runs), _changed(runs), _only_in_one(runs)) if table.rows]


def slow_steps(slow: SlowSteps) -> str:
    """``16 of 50 steps (3, 7, 10 to 12, …) take 1.90 to 2.10 times the typical step``; the first step is 1."""
    number = f"{len(slow.indices)} of {slow.n_steps} steps"
    if slow.times is None:
        return number
    first, last = (f"{times:.2f}" for times in slow.times)
    longer = first if first == last else f"{first} to {last}"
    takes = "takes" if len(slow.indices) == 1 else "take"
    return f"{number} ({_ranges(slow.indices)}) {takes} {longer} times the typical step"


def _ranges(indices: Sequence[int]) -> str:
    """``3, 7, 10 to 12, …``, counted from 1."""
    ranges: list[list[int]] = []
    for step in (index + 1 for index in indices):
        if ranges and ranges[-1][-1] == step - 1:
            ranges[-1] = [ranges[-1][0], step]
        else:
            ranges.append([step])
    words = [" to ".join(map(str, ends)) for ends in ranges[:MAX_RANGES]]
    return ", ".join([*words, *(["…"] if len(ranges) > MAX_RANGES else [])])


def _marked(pair: Pair, text: str) -> str:
    return text + (MARK if pair.unlike else "")


def _step_ms(pair: Pair, run: int) -> str:
    """The step that the ratio is about; the mean one where there is none."""
    measured = (pair.base, pair.head)[run].measured
    if pair.ratio is not None:
        return _marked(pair, ms(pair.ratio.typical_s[run]))
    return _marked(pair, ms(measured.step_time_s_rank_max if measured else None))


def _of_means(pair: Pair) -> str:
    """``1.066 (0.981 to 1.158)``"""
    if pair.ratio is None:
        return UNKNOWN
    return f"{pair.means.estimate:.3f} ({ends(pair.means.interval, 3)})"


def _peak_gib(pair: Pair, row: Row) -> str:
    return _marked(pair, gib(row.measured.of(PEAK_ALLOCATED) if row.measured else None))


def _why_undecided(pair: Pair) -> str:
    if pair.speed != "UNCLEAR" or pair.tail is None:
        return ""
    if pair.disturbed:
        return pair.disturbed
    return "" if pair.tail.more or pair.tail.fewer else "the shares of slow steps may be equal"


def _launches(pair: Pair) -> str:
    """``5`` of each, or ``5, 3`` of base and head."""
    counts = [sum(launch.measured is not None for launch in row.each) for row in (pair.base, pair.head)]
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]}, {counts[1]}"


def _launches_vary(runs: TwoRuns) -> str:
    """What the intervals assume of the differences between launches; empty without an interval."""
    ratios = [pair.ratio for pair in runs.pairs if pair.ratio]
    if not ratios:
        return ""
    if runs.noise is not None:
        return f"The intervals include {percent(runs.noise)} between runs of the same code, given by --noise."
    decided = [pair.ratio for pair in runs.pairs if pair.ratio and pair.speed in ("SLOWER", "FASTER")]
    tips = [ratio.tips_at for ratio in decided if ratio.tips_at]
    bases = {ratio.basis for ratio in ratios}
    known = [(pair.base, pair.head) for pair in runs.pairs if pair.ratio and pair.ratio.basis == "variation"]
    variations = [runs.variation] if runs.variation else []
    own = any(pair.launched for pair in runs.pairs)
    sentences = [*how_launches_vary(bases, variations, tips, set(map(fewest_launches, known)), own=own)]
    if "launches" in bases:
        sentences.append(f"{'Other attempts' if sentences else 'Three launches a side'}: their own variation.")
    if "launches" in bases or ("variation" in bases and runs.variation and not runs.variation.over_time):
        sentences.append(f"{percent(QUIET)} between the runs is added.")
    return " ".join([*sentences, "--noise replaces this."])


def _spread(runs: TwoRuns) -> str:
    """Which intervals say nothing of their own attempt; empty where none."""
    as_wide = sum(pair.ratio.as_wide_as_spread for pair in runs.pairs if pair.ratio)
    if not as_wide:
        return ""
    return (
        f"With {ENOUGH_PAIRS} attempts or more, no interval is narrower than their ratios differ among themselves,"
        f" whatever --noise says: {as_wide} of {counted(len(runs.pairs), 'attempt')} would have a narrower one."
    )


def _pairs(runs: TwoRuns) -> Table:
    own = any(pair.launched for pair in runs.pairs)
    more = f"; measure more launches ({MORE_LAUNCHES}) or steps, or use a quieter machine" if own else ""
    stated = any(pair.of_means_alone for pair in runs.pairs)
    alone = " Where no steps are known, as of imported figures, both are of the mean step." if stated else ""
    repeated = any(pair.base.launches or pair.head.launches for pair in runs.pairs)
    columns: list[Column[Pair]] = [
        Column("attempt", lambda pair: pair.name),
        *([Number("launches", _launches)] if repeated else []),
        Number("base step ms", lambda pair: _step_ms(pair, 0)),
        Number("head step ms", lambda pair: _step_ms(pair, 1)),
        Number("head / base", lambda pair: _marked(pair, f"{pair.ratio.estimate:.3f}" if pair.ratio else UNKNOWN)),
        Number("interval", lambda pair: _marked(pair, ends(pair.decides, 3) if pair.decides else UNKNOWN)),
        Number("of means", lambda pair: _marked(pair, _of_means(pair))),
        Column(
            "step", lambda pair: _marked(pair, pair.speed), bold=lambda pair: pair.speed in ("SLOWER", "SLOWER TAIL")
        ),
        Number("base GiB", lambda pair: _peak_gib(pair, pair.base)),
        Number("head GiB", lambda pair: _peak_gib(pair, pair.head)),
        Column("memory", lambda pair: _marked(pair, pair.space), bold=lambda pair: pair.space == "MORE"),
    ]
    return table_of(
        "Attempts in both runs",
        runs.pairs,
        columns,
        notes=(
            "Step ms: the typical step, which is the mean of the faster half of the slowest rank's steps. head / base"
            " is the ratio of the typical steps; of means is the ratio of the mean steps, with its 95 % interval."
            f"{alone}",
            f"SAME: the interval, of 95 % confidence, and the ratio of means lie within {percent(runs.margin)}"
            " (--same-within). SLOWER, FASTER: the interval is beyond that. Except for SAME, it has"
            f" {percent(ALARM_CONFIDENCE)} confidence for all attempts together."
            " SLOWER TAIL, FASTER TAIL: the typical step is neither, but more or fewer steps are slow, and the mean"
            f" changes by more than that. UNCLEAR: none of these, or only the slower run was disturbed{more}.",
            *filter(None, [_launches_vary(runs), _spread(runs)]),
            f"GiB: peak allocated of the worst rank; of several launches, the largest. Memory compares the means of the"
            f" launches' peaks: SAME within {percent(MEMORY_MARGIN)} or"
            f" {size(GRANULE_BYTES)}. UNCLEAR: it differs by more, but launches of one run may differ as much. On a CPU"
            f" that is {size(HEAP_BLOCK_BYTES)}, unless repeated launches show how much they differ.",
        ),
    )


def _tails(runs: TwoRuns) -> Table:
    return table_of(
        "Slow steps",
        [pair for pair in runs.pairs if pair.tail_changed],
        [
            Column("attempt", lambda pair: pair.name),
            Column("step", lambda pair: _marked(pair, pair.speed)),
            Number("of means", lambda pair: _marked(pair, _of_means(pair))),
            Column("slow steps of head", lambda pair: slow_steps(pair.tail.head) if pair.tail else UNKNOWN),
            Column("slow steps of base", lambda pair: slow_steps(pair.tail.base) if pair.tail else UNKNOWN),
            Column("undecided because", _why_undecided),
        ],
        notes=(
            f"A step is slow if it takes at least {SLOW:g} times the typical step of its own run. A tail is SLOWER or"
            f" FASTER if the shares of slow steps differ with {percent(ALARM_CONFIDENCE)} confidence for all attempts"
            " together, and the mean step differs by more than the margin with 95 % confidence. Slow steps in"
            " a row count less than single ones, because other processes cause such bursts.",
        ),
    )


def _changed(runs: TwoRuns) -> Table:
    return table_of(
        "Outcomes that changed",
        runs.changed,
        [
            Column("attempt", lambda changed: changed.name),
            Column("base", lambda changed: changed.base.outcome),
            Column("head", lambda changed: changed.head.outcome),
            Column("why", lambda changed: short_reason(changed.head.reason) or short_reason(changed.base.reason)),
        ],
    )


def _only_in_one(runs: TwoRuns) -> Table:
    return table_of(
        "Only in one run",
        runs.only_in_one,
        [
            Column("attempt", lambda attempt: attempt.name),
            Column("run", lambda attempt: attempt.run),
            Column("outcome", lambda attempt: attempt.row.outcome),
            Column("the other has", lambda attempt: short_reason(attempt.nearest)),
        ],
        notes=("the other has: other batches of the same cell, or how its most similar cell differs.",),
    )


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common()) or "none"
