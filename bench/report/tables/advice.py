"""The section *What to run*: the recommended setting, the reasons, and the alternatives."""

from collections.abc import Iterator, Sequence

from bench.report.advice import CHOICES, Advice, LeftOut
from bench.report.doubts import doubted_rows
from bench.report.naming import caption, listed, value_of
from bench.report.rows import Row, RowId, Sampled, Summary
from bench.report.speedup import throughput_ratio
from bench.report.tables.doubts import TITLE as DOUBTS
from bench.report.tables.table import Lines
from bench.statistics.verdict import EVEN, UNDECIDED
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
        yield f"{task}train with {name}: {figures}{_even(summary, advice)}{_caveats(advice, chosen, doubted)}"
    for row in advice.alternatives:
        beyond = (row.held or 0) > headroom
        but = f"{_word(advice.chosen, row)} beyond the headroom: " if beyond and advice.chosen else ""
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


def _word(chosen: Row, row: Row) -> str:
    """How the throughput of ``row`` compares with that of the chosen one."""
    word = throughput_ratio(row, chosen).word
    return f"{word} and" if word == UNDECIDED else f"{word}, but"


def _even(summary: Summary, advice: Advice) -> str:
    """`` Even with ddp, batch 16 (1.01×, 0.98 to 1.04).``: the chosen row's throughput divided by the other's."""
    sentences = ""
    for words, pairs in ((f"{EVEN} with", advice.even), (f"{UNDECIDED} against", advice.undecided)):
        names = []
        for pair in pairs[:MAX_EVEN]:
            assert pair.ratio.interval is not None
            low, high = pair.ratio.interval
            names.append(f"{_choice(summary, pair.reference)} ({pair.ratio.estimate:.2f}×, {low:.2f} to {high:.2f})")
        more = [f"{len(pairs) - MAX_EVEN} more"] if len(pairs) > MAX_EVEN else []
        sentences += f" {words.capitalize()} {'; '.join([*names, *more])}." if pairs else ""
    return sentences


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
    return ", ".join([value_of(row, "backend"), *names, f"batch {row.batch_per_rank}"])


def _memory(row: Row, headroom: float) -> str:
    if row.held is None:
        return "memory n/a: it may be beyond the headroom."
    spare = f", {percent(1 - row.held)} of capacity to spare" if row.held <= headroom else ""
    return f"{percent(row.held)} of capacity held{spare}."


def _based_on(row: Row) -> str:
    if not isinstance(row.measured, Sampled):
        return f"Based on imported figures: {row.measured.source if row.measured else ''}."
    launches = len(row.measured.launches)
    each = f"{counted(launches, 'launch')} of " if launches > 1 else ""
    return f"Based on {each}{row.n_steps} measured steps of {counted(row.world_size, 'rank')}."
