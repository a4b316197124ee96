"""The wording of `bench compare`: see `compare` for what it says."""

from bench.report.compare import MEMORY_MARGIN, MEMORY_MARGIN_BYTES
from bench.report.rows import Measured, Row
from bench.report.run_pair import Pair, TwoRuns
from bench.report.tables.attempts import REASON_LIMIT, Table, one_line
from bench.statistics.ratio import ALARM_CONFIDENCE, QUIET, Ratio
from bench.units import UNKNOWN, gib, ms, percent

MARK = " (!)"
"""Behind every figure of a pair that differs in more than the code."""


def tables(comparison: TwoRuns) -> list[Table]:
    """What was measured in both runs, what came to something else, what only one run has."""
    return [table for table in (_pairs(comparison), _changed(comparison), _lone(comparison)) if table.rows]


def warning(comparison: TwoRuns) -> str | None:
    """What a reader must know first; None when all pairs are alike."""
    if not comparison.unlike:
        return None
    differences = "; ".join(map(one_line, comparison.unlike))
    return (
        f"UNLIKE: what is marked{MARK} differs in more than the code, and its figures say nothing of it: {differences}."
    )


def _pairs(comparison: TwoRuns) -> Table:
    numbers = ("base step ms", "head step ms", "head / base", "95 % interval", "of means", "base GiB", "head GiB")
    return Table(
        title="Attempts in both runs",
        headers=("attempt", *numbers[:5], "step", *numbers[5:], "memory"),
        rows=tuple(_pair(pair) for pair in comparison.pairs),
        numeric=frozenset(numbers),
        bold=frozenset(
            (index, header)
            for index, pair in enumerate(comparison.pairs)
            for header, verdict in (("step", pair.speed), ("memory", pair.space))
            if verdict in ("SLOWER", "MORE")
        ),
        notes=(
            "Step ms: the typical step, the mean of the faster half, by the slowest rank of each; head / base is the"
            " ratio of these, of means that of all steps.",
            f"SAME: the 95 % interval lies within {percent(comparison.margin)} (--same-within). SLOWER, FASTER: the"
            f" ratio is beyond that with {percent(ALARM_CONFIDENCE)} confidence, for all together. UNCLEAR: neither;"
            " measure more steps, or on a quieter machine.",
            "The intervals allow for what runs of the same code differ by: "
            + (
                f"{percent(comparison.noise)}, as --noise says."
                if comparison.noise is not None
                else f"{percent(QUIET)}, and as much as the steps of each run were disturbed; --noise replaces both."
            ),
            f"GiB: peak allocated of the worst rank; SAME within {percent(MEMORY_MARGIN)} or"
            f" {gib(MEMORY_MARGIN_BYTES)} GiB.",
        ),
    )


def _pair(pair: Pair) -> tuple[str, ...]:
    mark = MARK if pair.unlike else ""
    base, head = pair.base.measured, pair.head.measured
    return (
        pair.name,
        *(text + mark for text in (_step_ms(pair.ratio, base, 0), _step_ms(pair.ratio, head, 1))),
        *(text + mark for text in _ratio(pair.ratio)),
        pair.speed + mark,
        *(gib(run.peak_allocated_bytes_rank_max if run else None) + mark for run in (base, head)),
        pair.space + mark,
    )


def _step_ms(ratio: Ratio | None, measured: Measured | None, run: int) -> str:
    """The typical step that the ratio is of; without samples the mean that was given."""
    if ratio is not None:
        return ms(ratio.typical_s[run])
    return ms(measured.step_time_s_rank_max if measured else None)


def _ratio(ratio: Ratio | None) -> tuple[str, str, str]:
    if ratio is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    low, high = ratio.interval
    return f"{ratio.estimate:.3f}", f"{low:.3f} to {high:.3f}", f"{ratio.of_means:.3f}"


def _changed(comparison: TwoRuns) -> Table:
    return Table(
        title="Outcomes that changed",
        headers=("attempt", "base", "head", "why"),
        rows=tuple(
            (changed.name, changed.base.outcome, changed.head.outcome, _reason(changed.head) or _reason(changed.base))
            for changed in comparison.changed
        ),
        numeric=frozenset(),
    )


def _lone(comparison: TwoRuns) -> Table:
    return Table(
        title="Only in one run",
        headers=("attempt", "run", "outcome", "the other has"),
        rows=tuple(
            (lone.name, lone.run, lone.row.outcome, one_line(lone.nearest, REASON_LIMIT)) for lone in comparison.lone
        ),
        numeric=frozenset(),
        notes=("the other has: the same cell at other batches, or in what its nearest cell differs.",),
    )


def _reason(row: Row) -> str:
    return one_line(row.reason or "", REASON_LIMIT)
