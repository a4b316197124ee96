"""The section *What to run*: the recommended setting, the reasons, and the alternatives."""

from collections.abc import Iterator, Sequence

from bench.report.advice import CHOICES, Advice, LeftOut
from bench.report.doubts import doubted_rows
from bench.report.naming import batch_of, caption, listed, value_of
from bench.report.rows import Row, RowId, Sampled, Summary
from bench.report.speedup import SpeedUp
from bench.report.tables.doubts import TITLE as DOUBTS
from bench.report.tables.table import Lines
from bench.statistics.verdict import EVEN, FASTER
from bench.units import counted, percent, rate

MAX_EVEN = 5


def advice_section(summary: Summary, advice: Sequence[Advice]) -> Lines:
    return Lines(title="What to run", lines=tuple(advice_sentences(summary, advice)))


def advice_sentences(summary: Summary, advice: Sequence[Advice]) -> list[str]:
    """Sentences: the recommended setting of each task, the reasons, and the alternatives."""
    doubted = doubted_rows(summary)
    return [line for each in advice for line in _sentences(summary, each, doubted)]


def _sentences(summary: Summary, advice: Advice, doubted: frozenset[RowId]) -> Iterator[str]:
    task, headroom = f"For {advice.task}: " if advice.task else "", advice.headroom
    if advice.search_ends:
        yield f"{task}no batch to recommend: {listed(advice.search_ends)}."
    elif advice.chosen is None:
        remedy = f": search with {advice.remedy}" if advice.remedy else ""
        yield f"{task}nothing was measured within {percent(headroom)} of capacity{remedy}."
    else:
        chosen, name = advice.chosen, _choice(summary, advice.chosen)
        figures = f"{rate(chosen.rate)} samples/s, {_memory(chosen, headroom)} {_based_on(chosen)}"
        yield f"{task}train with {name}: {figures}{_even(summary, advice.even)}{_caveats(advice, chosen, doubted)}"
    for row in advice.alternatives:
        beyond = (row.held or 0) > headroom
        word = EVEN if any(pair.reference.id == row.id for pair in advice.even) else FASTER
        but = f"{word}, but beyond the headroom: " if beyond and advice.chosen else ""
        figures = f"{rate(row.rate)} samples/s, {_memory(row, headroom)}{_caveats(advice, row, doubted)}"
        yield f"{task}or {but}{_choice(summary, row)}: {figures}"
    for left_out in advice.left_out:
        yield f"{task}{left_out.backend}: {_why_left_out(left_out)}."


def _why_left_out(left_out: LeftOut) -> str:
    match left_out.cause:
        case "headroom":
            return "no batch within the headroom was measured"
        case "searches":
            return f"no batch to recommend: {listed(left_out.details)}"
        case "few_steps":
            return "no batch was measured in full and without thrashing"
        case "outcomes":
            return f"nothing was measured: {', '.join(left_out.details)}"


def _even(summary: Summary, pairs: Sequence[SpeedUp]) -> str:
    """`` Even with ddp, batch 16 (1.01×, 0.83 to 1.24).``: the chosen row's throughput divided by the other's."""
    names = []
    for pair in pairs[:MAX_EVEN]:
        assert pair.ratio.interval is not None
        low, high = pair.ratio.interval
        names.append(f"{_choice(summary, pair.reference)} ({pair.ratio.estimate:.2f}×, {low:.2f} to {high:.2f})")
    more = [f"{len(pairs) - MAX_EVEN} more"] if len(pairs) > MAX_EVEN else []
    return f" {EVEN.capitalize()} with {'; '.join([*names, *more])}." if pairs else ""


def _caveats(advice: Advice, row: Row, doubted: frozenset[RowId]) -> str:
    """What a reader should know before using a row."""
    caveats = []
    if row.id in advice.unsearched:
        goal = advice.unsearched[row.id]
        caveats.append(
            f" The search could not try this batch: it tries {goal.candidates}."
            if goal
            else " It was measured after the search: search again."
        )
    if row.id in doubted:
        caveats.append(f' "{DOUBTS}" lists this row.')
    return "".join(caveats)


def _choice(summary: Summary, row: Row) -> str:
    """The settings that are free to choose and differ within the run."""
    names = [f"{caption(name)} {value_of(row, name)}" for name in summary.columns if name in CHOICES - {"backend"}]
    return ", ".join([value_of(row, "backend"), *names, f"batch {batch_of(row)}"])


def _memory(row: Row, headroom: float) -> str:
    if row.held is None:
        return "memory n/a: it may be beyond the headroom."
    spare = f", {percent(1 - row.held)} of capacity to spare" if row.held <= headroom else ""
    return f"{percent(row.held)} of capacity held{spare}."


def _based_on(row: Row) -> str:
    if not isinstance(row.measured, Sampled):
        return f"Based on imported figures: {row.measured.source if row.measured else ''}."
    return f"Based on {row.n_steps} measured steps of {counted(row.world_size, 'rank')}."
