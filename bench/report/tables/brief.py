"""The short report: the answer, one row for each setting, what to know before relying on it, and how to reproduce it.

It fits into a pull request and on one screen. The full report has the rest.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.records.cell import Regime
from bench.records.observed import only_forwards
from bench.records.outcome import KINDS
from bench.records.until import Until
from bench.records.verdict import Probe, Stopped, Verdict
from bench.report import implausible
from bench.report.advice import Advice
from bench.report.claims import Judged
from bench.report.controlled import RUN, SEEN_WHEN_MEASURED
from bench.report.doubts import Doubt, doubts, may_be_off
from bench.report.missing import Missing
from bench.report.naming import (
    batch_of,
    caption,
    cell_name,
    ends,
    listed,
    row_name,
    search_end,
    setting,
    settings_name,
    short_reason,
    value_of,
)
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.report.speedup import between
from bench.report.tables.advice import Matrices, answer, elsewhere, goes_on, unfinished_words
from bench.report.tables.claims import finding
from bench.report.tables.doubts import TITLE as DOUBTS
from bench.report.tables.header import (
    computer,
    of_machines,
    run_in_words,
    short_commit,
    until_words,
    versions_in_words,
)
from bench.report.tables.raw_matrix import micro_batches
from bench.report.tables.speedup import how_sure_intervals_are
from bench.report.tables.table import Column, Lines, Number, Table, table_of
from bench.statistics.launches import ASSUMED, LaunchVariation
from bench.statistics.verdict import MARGIN, TOO_CLOSE, UNDECIDED, RateRatio
from bench.units import UNKNOWN, amount, counted, percent, rate

CAVEATS = "Before you rely on it"
MOST_SETTINGS = 20
"""Rows of the table of settings."""
MOST_CAVEATS = 6
OF_LAUNCH = re.compile(r"^launch \d+: ")
"""See `implausible.of_launch`."""
SEEN_DTYPES: Mapping[str, Callable[[Regime], str | None]] = {
    "weights": lambda regime: regime.weights_dtype,
    "summed gradients": lambda regime: regime.reduction_dtype,
}
"""What belongs to the backend, and may change how well it trains."""
MOST_NAMES = 4
"""Cells of one sentence."""
MOST_TASKS = 8
RULED_OUT = "ruled out"
"""By a certificate of `bench run --best` that is as narrow as *even*."""
ONLY_SHORT = "short trial only"
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cell at the batch that stands for it."""

    cell: CellRows
    row: Row | None
    """None: nothing was measured in full."""
    ratio: RateRatio | None
    """Its throughput divided by that of the recommended row of its task; None for that row, and without one."""
    advice: Advice | None
    """Of its task; None where there is no advice."""

    verdict: str
    """How it compares with the recommended row; of that row, whether it is recommended or only leads."""

    @property
    def shown(self) -> Row:
        """A row with the cell's settings."""
        return self.row or self.cell.rows[0]

    @property
    def is_chosen(self) -> bool:
        return self.advice is not None and self.row is not None and self.row is self.advice.chosen


def settings(summary: Summary, advice: Sequence[Advice]) -> list[Setting]:
    """Each cell at its best batch within the headroom, and faster rows beyond it: by task, the fastest first. Of a
    single cell, each batch that was measured in full."""
    off, found = may_be_off(summary), list[Setting]()
    for task in advice:
        named = [row for row in (task.chosen, *task.alternatives) if row]
        of_task = []
        for cell in task.cells:
            of_cell = cell.full if len(summary.cells) == 1 else named  # of one cell, all its batches
            rows: list[Row | None] = [row for row in of_cell if any(row is other for other in cell.rows)]
            of_task += [_setting(cell, row, task, off) for row in rows or [task.best_of(cell)]]
        found += sorted(of_task, key=lambda setting: setting.row.rate if setting.row else 0.0, reverse=True)
    answered = {cell.rows[0].id.cell for task in advice for cell in task.cells}
    rest = [cell for cell in summary.cells if cell.rows[0].id.cell not in answered]
    return [*found, *(Setting(cell=cell, row=cell.best, ratio=None, advice=None, verdict="") for cell in rest)]


def _setting(cell: CellRows, row: Row | None, advice: Advice, off: Mapping[RowId, float]) -> Setting:
    chosen, ratio, verdict = advice.chosen, None, ""
    if row and row is chosen:
        verdict = "leading" if advice.unsure or unfinished_words(advice.missing) else "recommended"
    elif row and chosen:
        ratio = between(row, chosen, off, advice.comparisons).ratio
        verdict = "slower" if ratio.has_winner and ratio.estimate < 1 else ratio.word
        ruled_out = advice.certified is not None and advice.certified.answer.within <= MARGIN
        if ruled_out and row.id not in advice.beyond and verdict in (TOO_CLOSE, UNDECIDED):
            verdict = RULED_OUT
    return Setting(cell=cell, row=row, ratio=ratio, advice=advice, verdict=verdict)


def answer_section(summary: Summary, advice: Sequence[Advice], matrices: Matrices, missing: Sequence[Missing]) -> Lines:
    """What to run. Of one task, the answer is the heading."""
    # A sentence that names a section of the full report names the one that has the same here.
    answers = [
        [line.replace(f'"{DOUBTS}"', f'"{CAVEATS}"') for line in answer(summary, task, matrices)] for task in advice
    ]
    if not answers:
        words, commands = unfinished_words(missing), sorted(set(matrices.values()))
        title = f"No advice yet: {words}" if words else "Nothing to recommend"
        more = [f"{goes_on(commands[0], missing)}."] if words and len(commands) == 1 else []
        return Lines(title=title, lines=("No attempt was measured in full.", *more))
    if len(answers) == 1 and len(answers[0]) > 1:
        heading = answers[0][0].rstrip(".")
        return Lines(title=heading[0].upper() + heading[1:], lines=tuple(answers[0][1:]))
    left = len(answers) - MOST_TASKS
    more = [f"and {counted(left, 'more task')}: see the full report."] if left > 0 else []
    unfinished = {unfinished_words(task.missing) for task in advice}
    if len(unfinished) == 1 and (words := unfinished.pop()) and all(task.chosen for task in advice):
        leads = [line for lines in answers[:MOST_TASKS] for line in lines[1:-1]]
        return Lines(title=f"No advice yet: {words}", lines=(*leads, *more, answers[0][-1]))
    return Lines(title="What to run", lines=(*(lines[0] for lines in answers[:MOST_TASKS]), *more))


def settings_table(
    summary: Summary,
    found: Sequence[Setting],
    probes: Sequence[Probe] = (),
    *,
    most: int = MOST_SETTINGS,
    intervals: bool = True,
) -> Table:
    """One row for each of the first ``most`` settings."""
    found_in = [(probe.cell.id, str(probe.axes.get(RUN)), probe.found) for probe in probes]
    largest = {(cell, run): end.max_batch_per_rank for cell, run, end in found_in if isinstance(end, Verdict)}
    doubted = may_be_off(summary).keys()
    observed = [
        name
        for name in sorted(SEEN_WHEN_MEASURED)
        if len({str(one.cell.controlled[name]) for one in found if one.row and name in one.cell.controlled}) > 1
    ]
    shown = found[:most]
    remarks = {id(setting): "; ".join(_remarks(setting, doubted, observed)) for setting in shown}
    headroom = Number[Setting]("headroom", lambda setting: percent(setting.advice.headroom) if setting.advice else "")
    differ = len({setting.advice.headroom for setting in found if setting.advice}) > 1
    max_batch = Number[Setting](
        "max batch",
        lambda setting: str(largest.get((setting.cell.cell.id, str(setting.shown.settings.get(RUN)))) or ""),
    )
    interval = Column[Setting]("interval", lambda setting: ends(setting.ratio.decides) if setting.ratio else "")
    columns: list[Column[Setting]] = [
        *(_axis(name) for name in summary.columns or ("backend",)),
        *([headroom] if differ else []),
        Number(
            "micro-batch" if all(setting.shown.global_batch for setting in found) else "batch",
            lambda setting: batch_of(setting.row) if setting.row else "",
        ),
        *micro_batches(found, lambda setting: setting.row, beside=summary.columns),
        Number(
            "samples/s",
            lambda setting: rate(setting.row.rate) if setting.row else "",
            bold=lambda setting: setting.is_chosen,
        ),
        *([max_batch] if largest else []),
        Number(
            "ratio",
            lambda setting: f"{setting.ratio.estimate:.2f}×" if setting.ratio else "",
            bold=lambda setting: bool(setting.ratio and setting.ratio.has_winner),
        ),
        *([interval] if intervals else []),
        Column("verdict", lambda setting: setting.verdict),
        Number("memory", lambda setting: percent(setting.row.held) if setting.row else ""),
        *([Column[Setting]("remark", lambda setting: remarks[id(setting)])] if any(remarks.values()) else []),
    ]
    notes = [f"The first {len(shown)} of {len(found)} settings."] if len(found) > len(shown) else []
    verdicts = {setting.verdict for setting in shown}
    if intervals and any(setting.ratio for setting in shown):
        several = sum(setting.is_chosen for setting in found) > 1
        notes.append(
            f"Ratios compare with the {'bold row of their task' if several else 'row in bold'}. "
            + how_sure_intervals_are({setting.ratio.word for setting in shown if setting.ratio})
        )
    if TOO_CLOSE in verdicts:
        notes.append(f"{TOO_CLOSE.capitalize()}: the interval contains 1.")
    if RULED_OUT in verdicts:
        notes.append(
            f"{RULED_OUT.capitalize()}: unlikely to be the fastest, by a model of all measured settings. The interval"
            " uses the launches of its two settings alone."
        )
    if open_ratios := [setting.ratio for setting in shown if setting.ratio and setting.verdict == UNDECIDED]:
        whys = ["what is doubted of the two rows may be the whole difference"] * any(one.off for one in open_ratios)
        whys += ["launches are of different sources"] * any(one.basis == "mixed sources" for one in open_ratios)
        notes.append(f"{UNDECIDED.capitalize()}: {', or '.join(whys)}.")
    return table_of("", shown, columns, name=lambda setting: row_name(summary, setting.shown), notes=notes)


def _axis(name: str) -> Column[Setting]:
    return Column(caption(name), lambda setting: value_of(setting.shown, name))


def _remarks(shown: Setting, doubted: Collection[RowId], observed: Sequence[str]) -> Iterator[str]:
    cell, row = shown.cell, shown.row
    if row is None:
        trials = [row.short and row.measured for row in cell.rows]
        traits = [OUT_OF_MEMORY if row.outcome == "oom" else cell.traits(row).word for row in cell.rows]
        words = [ONLY_SHORT if trial else word for trial, word in zip(trials, traits, strict=True)]
        yield from dict.fromkeys(words)
        return
    if shown.advice and (row.id in shown.advice.beyond or (row.held or 0.0) > shown.advice.headroom):
        yield f"beyond the headroom of {percent(shown.advice.headroom)}"
    if row.id in doubted:
        yield "doubted"
    yield from (
        f"{caption(name)} {setting(name, cell.controlled[name])}" for name in observed if name in cell.controlled
    )


def caveats(
    summary: Summary,
    advice: Sequence[Advice],
    missing: Sequence[Missing],
    unreadable: Mapping[str, str],
    judged: Sequence[Judged],
    probes: Sequence[Probe],
    untils: Sequence[Until],
) -> Lines:
    """What to know before relying on the figures: a sentence for each cause."""
    grouped: dict[str, list[Doubt]] = {}
    for doubt in doubts(summary):
        if doubt.grade != "note":
            alike = re.sub(r"[0-9][0-9.]*", "#", OF_LAUNCH.sub("", doubt.reason))
            grouped.setdefault(alike, []).append(doubt)
    lines = [_caveat(summary, found) for found in grouped.values()]
    if len(lines) > MOST_CAVEATS + 1:  # one more takes no more room than the words on it
        lines = [*lines[:MOST_CAVEATS], f"{counted(len(lines) - MOST_CAVEATS, 'more doubt')}: see the full report."]
    lines = [*_failures(summary), *_out_of_memory(summary), *lines]
    lines += dict.fromkeys(sentence for task in advice for sentence in _precision(task))
    lines += _by_sentence([*_unrouted(summary), *_micro_batches(summary)])
    if unfinished := unfinished_words(missing):
        lines.append(f"Not all is measured: {unfinished}.")
    lines += [*_threads(summary), *_stopped(summary, probes)]
    if unreadable:
        lines.append(f"{counted(len(unreadable), 'file')} cannot be read: see the full report.")
    lines += [
        f"Claim {each.verdict}: {each.claim.say}: {finding(each)}" for each in judged if each.verdict != "CONFIRMED"
    ]
    if confirmed := sum(each.verdict == "CONFIRMED" for each in judged):
        lines.append(f"{counted(confirmed, 'claim')} CONFIRMED.")
    return Lines(title=CAVEATS, lines=(*lines, *(f"{until_words(until)}." for until in untils)))


def _caveat(summary: Summary, found: Sequence[Doubt]) -> str:
    """Of the rows that are doubted for like reasons, the first one with its own."""
    rows = list({doubt.row.id: doubt.row for doubt in found if doubt.row}.values())
    reason = found[0].reason
    if not rows:
        return reason
    first, others = row_name(summary, rows[0]), len(rows) - 1
    of_first = [OF_LAUNCH.match(doubt.reason) for doubt in found if doubt.row and doubt.row.id == rows[0].id]
    launches = {match[0] for match in of_first if match}
    alike = {OF_LAUNCH.sub("", doubt.reason) for doubt in found}
    if others and len(alike) == 1:
        (reason,) = alike
    elif len(launches) > 1:
        reason = f"in {len(launches)} of {len(rows[0].each)} launches; {reason}"
    measured = {row.id for row in summary.rows if row.measured}
    if len(measured) > 1 and measured == {row.id for row in rows}:
        every = "Both rows, for example" if others == 1 else f"All {len(rows)} rows, such as"
        return f"{every} {first}: {reason}"
    if len(alike) > 1 and others:
        return f"{first}: {reason} {counted(others, 'other row')}: the same, with other figures."
    more = f" and {counted(others, 'other row')}" if others else ""
    return f"{first}{more}: {reason}"


def _by_sentence(told: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Each sentence once, with the names of the cells that it is about."""
    for sentence in dict.fromkeys(sentence for sentence, _ in told):
        yield f"{some([name for other, name in told if other == sentence])}: {sentence}"


def _precision(advice: Advice) -> Iterator[str]:
    """What the chosen row holds or sums in another dtype than the runner-up, at the same mixed precision."""
    if advice.runner_up is None:
        return
    rows = sorted((advice.runner_up.reference, advice.runner_up.row), key=lambda row: row is not advice.chosen)
    if not all(row.ranks for row in rows):
        return
    one, other = (row.ranks[0].raw.regime for row in rows)
    names = [str(row.settings["backend"]) for row in rows]
    if names[0] == names[1]:  # a setting makes the difference, which has a column
        return
    dtypes: dict[tuple[str, str], list[str]] = {}
    for what, of in SEEN_DTYPES.items():
        if (its := of(one)) and (theirs := of(other)) and its != theirs:
            dtypes.setdefault((its, theirs), []).append(what)
    are = [
        f"{' and '.join(what)} are {its} in {names[0]} and {theirs} in {names[1]}"
        for (its, theirs), what in dtypes.items()
    ]
    if are:
        sentence = "; ".join(are)
        yield f"{sentence[0].upper()}{sentence[1:]}: check that it trains as well."


def _unrouted(summary: Summary) -> Iterator[tuple[str, str]]:
    """Cells of which warm-up routed no sample to a large part: experts, or layers that are left out."""
    for cell in summary.cells:
        if cell.best and cell.best.sampled and implausible.much_not_routed(cell.best.sampled):
            for sentence in implausible.not_routed(cell.best.sampled):
                yield sentence, cell_name(summary, cell.best)


def _micro_batches(summary: Summary) -> Iterator[tuple[str, str]]:
    """Cells of scripts of which only the calls of the model show how many samples a step has."""
    for cell in summary.cells:
        rank = cell.best.sampled.slowest.raw if cell.best and cell.best.sampled else None
        if cell.best and rank and rank.observed:
            batch = cell.best.batch_per_rank
            for words in only_forwards(
                rank.observed, len(rank.step_times_s), batch, cell.cell.rank_samples_per_step(batch)
            ):
                yield words, cell_name(summary, cell.best)


def _threads(summary: Summary) -> Iterator[str]:
    """The numbers of CPU threads that ranks had, where they differ: a rank with several computes faster, if no other
    process takes the cores."""
    cells: dict[int, list[str]] = {}
    for cell in summary.cells:
        if (row := cell.best) and row.device == "cpu" and row.ranks:
            names = cells.setdefault(max(rank.raw.threads for rank in row.ranks), [])
            names.append(cell_name(summary, row))
    if len(cells) > 1:
        parts = (f"{number} ({some(names)})" for number, names in sorted(cells.items()))
        yield f"CPU threads of a rank: {' and '.join(parts)}. On a busy machine, more threads may be slower."


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return "; ".join([*names[:MOST_NAMES], *more])


def _failures(summary: Summary) -> Iterator[str]:
    """Attempts that failed or hung, and why."""
    failed = [(row, cell.traits(row)) for cell in summary.cells for row in cell.rows if KINDS[row.outcome].fails]
    for row, traits in failed[:MOST_NAMES]:
        yield f"{row_name(summary, row)} {traits.verb}: {short_reason(row.reason)}"
    if len(failed) > MOST_NAMES:
        yield f"{counted(len(failed) - MOST_NAMES, 'more attempt')} failed: see the full report."


def _stopped(summary: Summary, probes: Sequence[Probe]) -> Iterator[str]:
    """Searches that ended without an answer."""
    stopped = [probe for probe in probes if isinstance(probe.found, Stopped) or probe.found.best is None]
    for probe in stopped[:MOST_NAMES]:
        name = settings_name(probe.axes, [each for each in summary.columns if each in probe.axes])
        yield f"The search of {name or probe.cell.backend} ended without an answer: {search_end(probe.found)}."
    if len(stopped) > MOST_NAMES:
        yield f"{counted(len(stopped) - MOST_NAMES, 'more search')} ended without an answer: see the full report."


def _out_of_memory(summary: Summary) -> Iterator[str]:
    """The smallest batches that did not fit, with the cells that they did not fit."""
    cells: dict[int, list[str]] = {}
    for cell in summary.cells:
        if batches := [row.batch_per_rank for row in cell.rows if row.outcome == "oom"]:
            cells.setdefault(min(batches), []).append(cell_name(summary, cell.rows[0]))
    for batch, names in sorted(cells.items()):
        yield f"Batch {batch} ran out of memory: {some(names)}."


def rests_on(found: Sequence[Setting], variations: Sequence[LaunchVariation]) -> str:
    """What the intervals of the ratios rest on; empty without a ratio."""
    compared = [setting for setting in found if setting.ratio or setting.is_chosen]
    bases = {setting.ratio.basis for setting in compared if setting.ratio}
    if not bases:
        return ""
    rows = [setting.row.measured for setting in compared if setting.row and setting.row.measured]
    counts = sorted({len(measured.launches) for measured in rows if measured.launches})
    fewest = f"{counts[0]} to " if len(counts) > 1 else ""
    # An earlier leader may have been slower when it was launched again.
    leading = {len(one.row.measured.launches) for one in compared if one.is_chosen and one.row and one.row.measured}
    led = f", {counts[0]} of what leads" if fewest and counts[0] in leading else ""
    parts = [f"{fewest}{counted(counts[-1], 'launch')} of each setting{led}"] if counts else []
    what = " and ".join(parts + ["imported figures"] * any(not measured.launches for measured in rows))
    if "assumed" in bases:
        return f"Ratios rest on {what}; launches are assumed to vary by {percent(ASSUMED.sd)} (standard deviation)."
    if "variation" in bases and variations:
        known = " or ".join(percent(variation.sd) for variation in variations)
        return f"Ratios rest on {what}; launches of this machine vary by {known} (standard deviation)."
    return f"Ratios rest on {what}, and on how much they vary."


def measured_how(
    summary: Summary, found: Sequence[Setting], matrices: Matrices, *, asked: str = "", short: bool = False
) -> Lines:
    """Where and how it was measured, what the ratios rest on, and how to do it again: with ``asked``, options."""
    shared = {name: setting(name, value) for name, value in summary.shared.items() if value is not None}
    what = " ".join(shared[name] for name in ("workload", "preset") if name in shared)
    steps = f"{shared['steps']} steps" if "steps" in shared else ""
    first = [rank.raw for row in summary.rows for rank in row.ranks[:1]]
    sizes = sorted({rank.coverage.parameters for rank in first if rank.observed})  # maybe not of the model meant
    model = f"a model of {' or '.join(map(amount, sizes[:MOST_NAMES]))} parameters" if sizes else ""
    said = shared.get("mixed_precision", "")
    precision = "no mixed precision" if said == "no" else said
    same = ", ".join(filter(None, (what, model, precision, steps)))
    ranks = sorted({row.world_size for row in summary.rows})
    on = f"{' or '.join(map(str, ranks))} rank{'s' * (ranks != [1])} on {of_machines(summary, computer)}"
    made_by = [of_machines(summary, versions_in_words), f"commit {of_machines(summary, short_commit)}"]
    commands = sorted(set(matrices.values()))
    sources = dict.fromkeys(row.source for row in summary.rows if row.source)
    imported = f"Imported from {listed(list(sources))}. `bench init` begins a run of your own." if sources else ""
    again = "probe" if all(one.advice and one.advice.searched for one in found) else "run"
    lines = (
        f"{on}; {same}." if same else f"{on}.",
        "; ".join(text for text in made_by if UNKNOWN not in text.split()),
        f"{run_in_words(summary)}.",
        rests_on(found, summary.variations),
        f"Reproduce: `bench {again} {elsewhere(commands[0], 'again')}{asked}`." if len(commands) == 1 else imported,
        "All sections: `bench report --full`.",
    )
    kept = (lines[0], *lines[-2:]) if short else lines
    return Lines(title="How it was measured", lines=tuple(line for line in kept if line))
