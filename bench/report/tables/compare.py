"""The wording of `bench compare`: tables and sentences about two runs."""

from collections import Counter
from collections.abc import Iterable

from bench.errors import one_line
from bench.records.sources import named
from bench.report.compare import MEMORY_MARGIN, MEMORY_MARGIN_BYTES, Changed, OnlyInOne, Pair, TwoRuns
from bench.report.naming import short_reason
from bench.report.rows import Row
from bench.report.tables.table import Column, Table, table_of
from bench.statistics.ratio import ALARM_CONFIDENCE, QUIET
from bench.units import UNKNOWN, counted, gib, ms, percent

MARK = " (!)"
"""Added to every figure of a pair that differs in more than the code."""


def summary_line(runs: TwoRuns) -> str:
    """The comparison in one line."""
    n_base = sum(attempt.run == "base" for attempt in runs.only_in_one)
    return (
        f"{counted(len(runs.pairs), 'attempt')} measured in both runs."
        f" Step: {_counts(pair.speed for pair in runs.pairs)}. Memory: {_counts(pair.space for pair in runs.pairs)}."
        f" Measured in neither run: {runs.unmeasured}. Outcome changed: {len(runs.changed)}. Only in base: {n_base}."
        f" Only in head: {len(runs.only_in_one) - n_base}."
    )


def warning(runs: TwoRuns) -> str | None:
    """What a reader must know first; None when the pairs differ in nothing but the code."""
    if not runs.unlike:
        return None
    differences = "; ".join(map(one_line, runs.unlike))
    return f"UNLIKE: figures marked{MARK} differ in more than the code and do not measure its change: {differences}."


def changed_sources(runs: TwoRuns) -> str | None:
    """What the comparison measures; None where no source is known to differ."""
    return f"Made by other sources: {one_line(named(runs.sources))}." if runs.sources else None


def regressions(runs: TwoRuns, threshold: float) -> list[str]:
    """A sentence for each attempt whose step is longer by more than ``threshold``, or that succeeded before and fails
    now.

    The whole alarm interval has to lie beyond the threshold, whatever the margin counts as the same. An attempt that
    head lacks counts unless a search may have left it out.
    """
    slower = [
        f"{pair.name}: its step takes {pair.ratio.estimate:.3f} times as long"
        f" ({pair.ratio.alarm[0]:.3f} to {pair.ratio.alarm[1]:.3f})"
        for pair in runs.slower(threshold)
        if pair.ratio
    ]
    broken = [
        f"{changed.name}: was {changed.base.outcome} and is {changed.head.outcome}: {short_reason(changed.head.reason)}"
        for changed in runs.broken
    ]
    gone = [
        f"{attempt.name}: was {attempt.row.outcome}, and head has no "
        + ("result of its cell" if attempt.cell_gone else "such batch")
        for attempt in runs.never_measured
    ]
    return slower + broken + gone


def open_questions(runs: TwoRuns, threshold: float) -> list[str]:
    """Sentences on what keeps the gate from a decision: attempts that head lacks, and steps that are not clear."""
    missing, unclear = len(runs.never_measured), len(runs.undecided(threshold))
    sentences = []
    if missing:
        sentences.append(f"{counted(missing, 'attempt')} of base not measured in head")
    if unclear:
        at = f"{unclear} of {counted(len(runs.pairs), 'attempt')} UNCLEAR at {percent(threshold)}"
        sentences.append(f"{at}: the gate could not decide there")
    return sentences


def tables(runs: TwoRuns) -> list[Table]:
    """The attempts in both runs, the outcomes that changed, and the attempts in only one run."""
    return [table for table in (_pairs(runs), _changed(runs), _only_in_one(runs)) if table.rows]


def _marked(pair: Pair, text: str) -> str:
    return text + (MARK if pair.unlike else "")


def _step_ms(pair: Pair, run: int) -> str:
    """The typical step that the ratio is about; without samples, the mean that the source gives."""
    measured = (pair.base, pair.head)[run].measured
    if pair.ratio is not None:
        return _marked(pair, ms(pair.ratio.typical_s[run]))
    return _marked(pair, ms(measured.step_time_s_rank_max if measured else None))


def _interval(pair: Pair) -> str:
    if pair.ratio is None:
        return _marked(pair, UNKNOWN)
    low, high = pair.ratio.interval
    return _marked(pair, f"{low:.3f} to {high:.3f}")


def _peak_gib(pair: Pair, row: Row) -> str:
    return _marked(pair, gib(row.measured.peak_allocated_bytes_rank_max if row.measured else None))


PAIR_COLUMNS: tuple[Column[Pair], ...] = (
    Column("attempt", lambda pair: pair.name),
    Column("base step ms", lambda pair: _step_ms(pair, 0), numeric=True),
    Column("head step ms", lambda pair: _step_ms(pair, 1), numeric=True),
    Column(
        "head / base",
        lambda pair: _marked(pair, f"{pair.ratio.estimate:.3f}" if pair.ratio else UNKNOWN),
        numeric=True,
    ),
    Column("95 % interval", _interval, numeric=True),
    Column(
        "of means", lambda pair: _marked(pair, f"{pair.ratio.of_means:.3f}" if pair.ratio else UNKNOWN), numeric=True
    ),
    Column("step", lambda pair: _marked(pair, pair.speed), bold=lambda pair: pair.speed == "SLOWER"),
    Column("base GiB", lambda pair: _peak_gib(pair, pair.base), numeric=True),
    Column("head GiB", lambda pair: _peak_gib(pair, pair.head), numeric=True),
    Column("memory", lambda pair: _marked(pair, pair.space), bold=lambda pair: pair.space == "MORE"),
)


def _pairs(runs: TwoRuns) -> Table:
    noise = (
        f"{percent(runs.noise)}, given by --noise."
        if runs.noise is not None
        else f"{percent(QUIET)}, plus the disturbance seen in the steps of each run. --noise replaces both."
    )
    return table_of(
        "Attempts in both runs",
        runs.pairs,
        PAIR_COLUMNS,
        notes=(
            "Step ms: the typical step, which is the mean of the faster half of the slowest rank's steps. head / base"
            " is the ratio of the typical steps; of means is the ratio of the mean steps.",
            f"SAME: the 95 % interval lies within {percent(runs.margin)} (--same-within). SLOWER, FASTER: the ratio is"
            f" beyond that with {percent(ALARM_CONFIDENCE)} confidence for all attempts together. UNCLEAR: none of"
            " these; measure more steps, or use a quieter machine.",
            f"The intervals include the differences between runs of the same code: {noise}",
            f"GiB: peak allocated of the worst rank; SAME within {percent(MEMORY_MARGIN)} or"
            f" {gib(MEMORY_MARGIN_BYTES)} GiB.",
        ),
    )


CHANGED_COLUMNS: tuple[Column[Changed], ...] = (
    Column("attempt", lambda changed: changed.name),
    Column("base", lambda changed: changed.base.outcome),
    Column("head", lambda changed: changed.head.outcome),
    Column("why", lambda changed: short_reason(changed.head.reason) or short_reason(changed.base.reason)),
)


def _changed(runs: TwoRuns) -> Table:
    return table_of("Outcomes that changed", runs.changed, CHANGED_COLUMNS)


ONLY_IN_ONE_COLUMNS: tuple[Column[OnlyInOne], ...] = (
    Column("attempt", lambda attempt: attempt.name),
    Column("run", lambda attempt: attempt.run),
    Column("outcome", lambda attempt: attempt.row.outcome),
    Column("the other has", lambda attempt: short_reason(attempt.nearest)),
)


def _only_in_one(runs: TwoRuns) -> Table:
    return table_of(
        "Only in one run",
        runs.only_in_one,
        ONLY_IN_ONE_COLUMNS,
        notes=("the other has: other batches of the same cell, or how its most similar cell differs.",),
    )


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common()) or "none"
