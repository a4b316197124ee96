"""The section *What to run*: the recommended setting, the reasons, and the alternatives."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.report.advice import Advice, LeftOut
from bench.report.controlled import RUN
from bench.report.doubts import causes, may_be_off
from bench.report.missing import Missing
from bench.report.naming import batch_in_words, ends, listed, settings_name, value_of
from bench.report.rows import Row, RowId, Summary
from bench.report.speedup import SpeedUp, between
from bench.report.tables.best import surest
from bench.report.tables.doubts import TITLE as DOUBTS
from bench.statistics.launches import MANY_LAUNCHES
from bench.statistics.verdict import EVEN, FASTER, MORE_LAUNCHES, TOO_CLOSE, UNDECIDED
from bench.units import counted, percent, rate

NO_MATRIX = "MATRIX"
"""Stands in a command for the matrix of a run that keeps none."""
BEST = " --best"
"""Ends what `bench run` takes if the run measured no more than the fastest setting asked for."""
SETTLED = 0.01
"""A narrower certificate of --best is not worth its launches."""
MAX_EVEN = 5
MOST_IMPORTED = 5
"""Tasks of imported figures that are answered. A published table may have hundreds of rows, each a task."""


Matrices = Mapping[tuple[str, str | None], str]
"""What `bench run` takes to measure more of a run: by a cell's id, and by the run where the report keeps runs apart."""


def advice_sentences(summary: Summary, advice: Sequence[Advice], matrices: Matrices | None = None) -> list[str]:
    """Sentences: the recommended setting of each task, the reasons, and the alternatives."""
    doubted, shown = causes(summary), _worth_showing(advice)
    lines = [line for each in shown for line in _sentences(summary, each, doubted, matrices or {})]
    if left := [task for task in advice if not any(task is each for each in shown)]:
        alone = sum(map(_is_alone, left)) or "none"
        lines.append(
            f"{counted(len(left), 'more task')} of imported figures, {alone} with a single"
            f' setting and nothing to compare: see "All results".'
        )
    return lines


def _worth_showing(advice: Sequence[Advice]) -> list[Advice]:
    """All that was measured. Of many tasks of imported figures, the first few in which there is something to choose."""
    imported = [task for task in advice if task.chosen and task.chosen.source]
    if len(imported) <= MOST_IMPORTED:
        return list(advice)
    kept = [task for task in imported if not _is_alone(task)] or imported
    left = {id(task) for task in imported} - {id(task) for task in kept[:MOST_IMPORTED]}
    return [task for task in advice if id(task) not in left]


def _is_alone(advice: Advice) -> bool:
    return advice.runner_up is None and not advice.alternatives


def missing_of(advice: Advice, matrices: Matrices, missing: Sequence[Missing]) -> tuple[Missing, ...]:
    """What is missing of the runs that an answer is based on."""
    ids = {cell.cell.id for cell in advice.cells}
    apart = {str(cell.controlled[RUN]) for cell in advice.cells if RUN in cell.controlled}
    runs = apart or {run for cell, run in matrices if run is not None and cell in ids}
    return tuple(cell for cell in missing if RUN not in cell.axes or str(cell.axes[RUN]) in runs)


def unfinished_words(missing: Sequence[Missing]) -> str:
    """``4 attempts are missing and 1 search has not ended``; empty where all is measured."""
    if any(cell.best for cell in missing):
        return "--best has not ended"
    attempts = sum(len(cell.batches) for cell in missing if cell.launches is None)
    searches = sum(cell.search for cell in missing)
    parts = [f"{counted(attempts, 'attempt')} {'is' if attempts == 1 else 'are'} missing"] if attempts else []
    parts += [f"{counted(searches, 'search')} {'has' if searches == 1 else 'have'} not ended"] if searches else []
    return " and ".join(parts)


def goes_on(command: str, missing: Sequence[Missing]) -> str:
    """What measures the rest."""
    running = any(cell.running for cell in missing)
    return "a process is still measuring" if running else f"`bench run {command}` goes on"


def answer(summary: Summary, advice: Advice, matrices: Matrices) -> tuple[str, ...]:
    """The answer of one task in a sentence; then what it rests on, and what would make it surer. Without the
    alternatives."""
    lead = list(_lead(summary, advice, causes(summary), matrices))
    task, unfinished = _begin(advice), unfinished_words(advice.missing)
    if advice.chosen is not None and unfinished:
        last = _sentence(goes_on(_matrix_of(advice.chosen, matrices), advice.missing))
        return (f"{task}no advice yet: {unfinished}.", *lead[1:], f"{last}.")
    if advice.chosen is not None:
        first = f"{task}{_choose(summary, advice, advice.chosen)}."
        caveats = _caveats(advice, advice.chosen, causes(summary) if advice.unsure else {}).strip()
        surer = " ".join(_surer(advice, advice.chosen, matrices))
        lead = [first, *filter(None, (caveats, surer))]
    return (*lead, *_without(advice))


def _begin(advice: Advice) -> str:
    """``For num_cams 4: ``, ``At a global batch of 512 on 8 ranks: ``; nothing where there is one task."""
    return f"{_sentence(in_task(advice))}: " if advice.task else ""


def in_task(advice: Advice) -> str:
    """``for num_cams 4``, ``at a global batch of 512 on 8 ranks``."""
    return advice.task if advice.task.startswith("at ") else f"for {advice.task}"


def _sentences(summary: Summary, advice: Advice, doubted: Mapping[RowId, str], matrices: Matrices) -> Iterator[str]:
    yield from _lead(summary, advice, doubted, matrices)
    if unfinished_words(advice.missing) and advice.chosen is not None:
        return
    headroom = advice.headroom
    for row in advice.alternatives:
        beyond = (
            "beyond the headroom" if (row.held_at_least or 0) > headroom else "its next launch may exceed the headroom"
        )
        chosen = advice.chosen if row.id in advice.beyond else None
        but = f"{_word(summary, advice, row, chosen)}, but {beyond}: " if chosen else ""
        figures = f"{rate(row.rate)} samples/s, {_memory(row, headroom)}{_caveats(advice, row, doubted)}"
        yield f"or {but}{_choice(summary, advice, row)}: {figures}"
    yield from _without(advice)


def _lead(summary: Summary, advice: Advice, doubted: Mapping[RowId, str], matrices: Matrices) -> Iterator[str]:
    """The answer, and what it rests on."""
    task, headroom = _begin(advice), advice.headroom
    if advice.invalid:
        yield f'{task}no row to recommend: the measured ones are invalid, see "{DOUBTS}".'
    elif advice.search_ends:
        yield f"{task}no batch to recommend: {listed(advice.search_ends)}."
    elif advice.chosen is None:
        remedy = f": search with {advice.remedy}" if advice.remedy else ""
        yield f"{task}nothing was measured that uses at most {percent(headroom)} of memory{remedy}."
    else:
        chosen = advice.chosen
        if unfinished := unfinished_words(advice.missing):
            more = goes_on(_matrix_of(chosen, matrices), advice.missing)
            yield f'{task}no advice yet: {unfinished}, see "Not measured"; {more}.'
            if "search" not in unfinished:  # else its own next batch may be faster
                leading = f"{task}leading so far: " if task else "Leading so far: "
                yield f"{leading}{_choice(summary, advice, chosen)}: {_figures(summary, advice, chosen)}."
            return
        yield " ".join([f"{task}{_choose(summary, advice, chosen)}.", *_surer(advice, chosen, matrices)])
        expected = " --best expects most of it, though another mean is higher." if advice.expected else ""
        reasons = f"{_sentence(_memory(chosen, headroom))} {_based_on(chosen)}{expected}{_even(summary, advice)}"
        yield f"{reasons}{_caveats(advice, chosen, doubted)}"


def _without(advice: Advice) -> Iterator[str]:
    for left_out in advice.left_out:
        yield f"{left_out.backend}: {_why_left_out(left_out)}."


def _figures(summary: Summary, advice: Advice, chosen: Row) -> str:
    return f"{rate(chosen.rate)} samples/s, {_against(summary, advice)}"


def _choose(summary: Summary, advice: Advice, chosen: Row) -> str:
    """What to run, against what, and how sure that is: one sentence for a person."""
    begin = "no sure answer, the leading row is doubted:" if advice.unsure else "train with"
    return f"{begin} {_choice(summary, advice, chosen)}: {_figures(summary, advice, chosen)}"


def _surer(advice: Advice, chosen: Row, matrices: Matrices) -> Iterator[str]:
    """What was not tried and what would make the answer surer, each with its command."""
    if chosen.measured is None or chosen.source:  # figures from elsewhere have no matrix to run
        return
    found = _matrix_of(chosen, matrices)
    matrix, again = found.removesuffix(BEST), "probe" if advice.searched else "run"
    # The same batches come first; --best would keep what it has.
    anew = f"run {elsewhere(matrix, 'again')}{BEST}" if matrix != found else f"{again} {matrix} --rerun all"
    next_best = advice.runner_up
    if advice.unsure:
        yield f"Once the cause is gone: `bench {anew}`."
        return
    if advice.larger == "not_tried":
        yield f"Larger batches were not tried: `bench probe {elsewhere(matrix, 'probe')}`."
    elif advice.larger == "max_batch":
        yield f"The search stopped at max_batch: `bench probe {matrix} probe.max_batch={2 * chosen.batch_per_rank}`."
    if matrix != found:
        if advice.certified is None or advice.certified.answer.within > SETTLED:
            yield f"For a surer answer: `bench run {found} --settle {SETTLED:.0%}`."
    elif next_best and next_best.off and not next_best.ratio.decided:
        yield f"The next best is doubted. Once the cause is gone: `bench {anew}`."
    elif len(chosen.measured.launches) < MANY_LAUNCHES:
        yield f"For a surer answer: `bench {again} {matrix} {MORE_LAUNCHES}`."
    elif next_best and not next_best.ratio.decided:
        yield f"For a surer answer: `bench run {matrix} --until 2%`."


def elsewhere(arguments: str, ending: str) -> str:
    """The same for another folder, beside the run's: ``reports/mine/matrix.yaml --out reports/mine-probe``."""
    if arguments == NO_MATRIX:
        return arguments
    words = shlex.split(arguments)
    root = str(Path(words[0]).parent)
    if "--out" in words:
        at = words.index("--out")
        root, words = words[at + 1], [*words[:at], *words[at + 2 :]]
    return shlex.join([*words, "--out", f"{root}-{ending}"])


def _matrix_of(row: Row, matrices: Matrices) -> str:
    run = row.settings.get(RUN)
    return matrices.get((row.id.cell[0], None if run is None else str(run)), NO_MATRIX)


def _against(summary: Summary, advice: Advice) -> str:
    """``1.20× that of zero2, batch 16 (1.14 to 1.26)``: against the next best row within the headroom, or what
    `bench run --best` certifies."""
    if advice.certified and not advice.unsure:  # a certificate takes the figures as they are
        return surest(advice.certified)
    pair = advice.runner_up
    if pair is None:
        return "no other setting to recommend was measured"
    other, ratio = _other(summary, advice, pair), pair.ratio
    if any(_is_between(row, pair) for row in summary.rows):
        other += ", the next best within the headroom"
    within = ends(ratio.decides)
    if ratio.even:
        return f"{EVEN} with {other} ({ratio.estimate:.2f}×, {within})"
    if not ratio.has_winner:
        maybe = f", which may be {'as fast' if ratio.estimate >= 1 else FASTER}" if ratio.word == TOO_CLOSE else ""
        return f"{ratio.estimate:.2f}× that of {other}{maybe} ({within}, {ratio.word})"
    holds = f"; holds unless launches vary by more than {percent(ratio.tips_at)}" if ratio.basis == "assumed" else ""
    return f"{ratio.estimate:.2f}× that of {other} ({within}{holds})"


def _is_between(row: Row, pair: SpeedUp) -> bool:
    """Whether another batch of the chosen cell is faster than the row that it is compared with."""
    chosen, other = pair.row, pair.reference
    same_cell = row.id.cell == chosen.id.cell == other.id.cell
    return same_cell and row.measured is not None and chosen is not row and row.rate > other.rate


def _why_left_out(left_out: LeftOut) -> str:
    match left_out.cause:
        case "stale":
            return "its results are stale: they are from older code; `bench run` measures them again"
        case "headroom":
            return "no batch within the headroom was measured"
        case "invalid":
            return f'its rows are invalid, see "{DOUBTS}"'
        case "searches":
            return f"no batch to recommend: {listed(left_out.details)}"
        case "few_steps":
            return "no batch was measured in full and without thrashing"
        case "outcomes":
            return f"nothing was measured: {', '.join(left_out.details)}"


def _word(summary: Summary, advice: Advice, row: Row, chosen: Row) -> str:
    """How the throughput of ``row`` compares with that of the chosen one. Its measured figure is higher."""
    ratio = between(row, chosen, may_be_off(summary), advice.comparisons).ratio
    return ratio.word if ratio.decided else f"perhaps {FASTER}"


def _even(summary: Summary, advice: Advice) -> str:
    """`` Even with ddp, batch 16 (1.01×, 0.98 to 1.04).``: the chosen row's throughput divided by the other's.

    Without the next best one, which the answer names.
    """
    named = advice.runner_up.reference.id if advice.runner_up else None
    sentences = ""
    for word, to in ((EVEN, "with"), (TOO_CLOSE, "against"), (UNDECIDED, "against")):
        pairs = [pair for pair in (*advice.even, *advice.undecided) if pair.ratio.word == word]
        pairs = [pair for pair in pairs if pair.reference.id != named]
        names = [
            f"{_other(summary, advice, pair)} ({pair.ratio.estimate:.2f}×, {ends(pair.ratio.decides)})"
            for pair in pairs[:MAX_EVEN]
        ]
        more = [f"{len(pairs) - MAX_EVEN} more"] if len(pairs) > MAX_EVEN else []
        sentences += f" {word.capitalize()} {to} {'; '.join([*names, *more])}." if pairs else ""
    return sentences


def _caveats(advice: Advice, row: Row, doubted: Mapping[RowId, str]) -> str:
    """What a reader should know before using a row."""
    caveats = ""
    if row.id in advice.unsearched:
        goal = advice.unsearched[row.id]
        could_not = f" The search could not try this batch: it tries {goal.candidates}." if goal else ""
        caveats = could_not or " It was measured after the search: search again."
    return caveats + (f" Caution: {doubted[row.id]}" if row.id in doubted else "")


def _other(summary: Summary, advice: Advice, pair: SpeedUp) -> str:
    """The reference, by what differs from the chosen row, its backend and its batch."""
    if pair.reference.id.cell == pair.row.id.cell:
        return batch_in_words(pair.reference)
    return _choice(summary, advice, pair.reference, but=pair.row)


def _choice(summary: Summary, advice: Advice, row: Row, but: Row | None = None) -> str:
    """The settings that are free to choose and differ within the run, and the backend.

    Args:
        but: leave out the settings that this row shares.
    """
    free = [name for name in summary.columns if name in advice.choices - {"backend"}]
    names = [name for name in free if but is None or value_of(row, name) != value_of(but, name)]
    return f"{settings_name(row.settings, ['backend', *names])}, {batch_in_words(row)}"


UNKNOWN_MEMORY = "memory n/a: it may be beyond the headroom."


def _memory(row: Row, headroom: float) -> str:
    if row.held is None:
        least = max(row.held_at_least or 0.0, 0.0)
        return f"uses at least {percent(least)} of memory." if least > headroom else UNKNOWN_MEMORY
    return f"uses {percent(max(row.held, 0.0))} of memory."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _based_on(row: Row) -> str:
    launches = len(row.measured.launches) if row.measured else 0
    if row.sampled:
        each = f"{counted(launches, 'launch')} of " if launches > 1 else ""
        return f"Based on {each}{row.n_steps} measured steps of {counted(row.world_size, 'rank')}."
    if row.source:
        return f"Based on imported figures: {row.source}."
    return f"Based on {counted(launches, 'launch')} of the script, and on its own figures."
