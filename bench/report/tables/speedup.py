"""The sections that say which cells of a run are faster, and which were not compared."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from functools import partial

from bench.report.controlled import ID, fields_in_words
from bench.report.doubts import may_be_off
from bench.report.naming import batch_of, caption, cell_name, ends, setting, value_of
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.report.speedup import Comparison, SpeedUp, even_batches
from bench.report.tables.doubts import TITLE as DOUBTS
from bench.report.tables.table import Column, Lines, Number, Table, table_of
from bench.statistics.launches import ASSUMED, ENOUGH_LAUNCHES, Basis, LaunchVariation
from bench.statistics.ratio import ALARM_CONFIDENCE
from bench.statistics.verdict import EVEN, FASTER, MARGIN, MORE_LAUNCHES, TOO_CLOSE, UNDECIDED, Word
from bench.units import UNKNOWN, percent, rate

NOT_COMPARED = "Not compared"


def speedup_sections(summary: Summary, comparison: Comparison, *, requested: bool) -> Iterator[Table | Lines]:
    """What is faster, or why nothing is compared; and the pairs that were not compared.

    Args:
        requested: whether the user requested this comparison. If not, an axis with only one value is not mentioned.
    """
    table = faster(summary, comparison)
    yield table
    if requested and not table.rows:
        yield Lines(title=table.title, lines=nothing_varies(summary, comparison.axis))
    yield Lines(title=NOT_COMPARED, lines=tuple(refusals(summary, comparison)), tone="neutral")


def faster(summary: Summary, comparison: Comparison) -> Table:
    """Best against best, then the matched batches, of each pair of cells."""
    axis = caption(comparison.axis)
    values = {row.id: _value(cell, comparison.axis) for cell in summary.cells for row in cell.rows}
    names = {
        row: f"{axis} {value}" if value[:1].isdigit() or value in SWITCH else value for row, value in values.items()
    }
    doubted = may_be_off(summary)
    as_fast = {cell.best.id: even_batches(cell, doubted, comparison.comparisons) for cell in summary.cells if cell.best}

    def batch(pair: SpeedUp, row: Row) -> str:
        others = () if pair.matched else as_fast.get(row.id, ())
        return batch_of(row) + (f" ({EVEN} with {', '.join(map(str, others))})" if others else "")

    def winner(pair: SpeedUp) -> str:
        return _winner(pair, names) + (", doubted" if pair.pair & doubted.keys() else "")

    reductions = [{_reduction(pair.reference), _reduction(pair.row)} - {UNKNOWN} for pair in comparison.speed_ups]
    reduced_apart = any(len(dtypes) > 1 for dtypes in reductions)
    several = any(row.micro_batches > 1 for pair in comparison.speed_ups for row in (pair.reference, pair.row))
    columns = [
        *(
            Column[SpeedUp](caption(name), partial(_of_both, partial(value_of, name=name)))
            for name in summary.columns
            if name not in (comparison.axis, ID)
        ),
        Column[SpeedUp]("how", partial(_how, several=several)),
        Column[SpeedUp](FASTER, winner, bold=lambda pair: not pair.matched and pair.ratio.decided),
        *([Column[SpeedUp]("gradients summed in", partial(_of_both, _reduction))] if reduced_apart else []),
        Column[SpeedUp](f"{axis} A", lambda pair: values[pair.reference.id]),
        Number[SpeedUp]("batch A", lambda pair: batch(pair, pair.reference)),
        Number[SpeedUp]("samples/s A", lambda pair: rate(pair.reference.rate)),
        Column[SpeedUp](f"{axis} B", lambda pair: values[pair.row.id]),
        Number[SpeedUp]("batch B", lambda pair: batch(pair, pair.row)),
        Number[SpeedUp]("samples/s B", lambda pair: rate(pair.row.rate)),
    ]
    unlike = sorted({name for pair in comparison.speed_ups for name in pair.unlike})
    notes = [
        f"UNLIKE: these figures compare results that also differ in {', '.join(unlike)}, as requested."
        if unlike
        else "Only results that agree in everything else are compared.",
        "Best against best: each side at the batch with its highest throughput. In brackets: the ratio's interval.",
        how_sure_intervals_are({pair.ratio.word for pair in comparison.speed_ups}),
        *how_decided(summary, comparison),
    ]
    if reduced_apart:
        notes.append("gradients summed in: the dtype in which ranks communicate them; backends differ in it.")
    if comparison.rows & doubted.keys():
        notes.append(f'Doubted: "{DOUBTS}" lists one of its rows.')
    return table_of(f"Which {axis} is faster", comparison.speed_ups, columns, notes=notes)


BEST = "best against best"
SWITCH = ("on", "off")
"""Like a number, no name of a side without that of its axis."""


def _how(pair: SpeedUp, *, several: bool) -> str:
    """``best against best``, ``matched batch 8``; with both global batches where steps have several micro-batches."""
    a, b = pair.reference.batch_global, pair.row.batch_global
    micro = "" if pair.row.global_batch is None else "micro-"
    how = f"matched {micro}batch {pair.row.batch_per_rank}" if pair.matched else BEST
    at = f", global batch {a}" if a == b else f", global batches {a} (A) and {b} (B)"
    return how + (at if several else "")


def _value(cell: CellRows, axis: str) -> str:
    """Of a setting, or of another controlled variable, such as the hardware."""
    return setting(axis, cell.controlled.get(axis, cell.rows[0].settings.get(axis)))


def _of_both(value: Callable[[Row], str], pair: SpeedUp) -> str:
    """A value; those of both sides where they differ, as where the user allowed it of a setting."""
    a, b = value(pair.reference), value(pair.row)
    return a if a == b else f"{a} (A), {b} (B)"


def _reduction(row: Row) -> str:
    """Of its gradients between ranks, as observed."""
    return row.ranks[0].raw.regime.reduction_dtype or "none" if row.ranks else UNKNOWN


def _winner(pair: SpeedUp, names: dict[RowId, str]) -> str:
    """``zero2 1.43× (1.40 to 1.46)``: the winner by its value of what is compared, and how much faster it is."""
    won: Row = pair.row
    ratio = pair.ratio
    if ratio.estimate < 1:
        won, ratio = pair.reference, ratio.inverse
    within = f" ({ends(ratio.decides)})"
    unlike = f" UNLIKE in {', '.join(pair.unlike)}" if pair.unlike else ""
    nobody = not ratio.has_winner and (ratio.even or f"{ratio.estimate:.2f}" == "1.00")
    name = "" if nobody else f"{names[won.id]} "
    word = "" if ratio.word == FASTER else f"{ratio.word}, "
    return f"{word}{name}{ratio.estimate:.2f}×{within}{unlike}"


def how_sure_intervals_are(words: Collection[Word]) -> str:
    """Those of ratios with these words."""
    even = f" (95 % where the word is {EVEN})" if EVEN in words else ""
    return f"Intervals have {percent(ALARM_CONFIDENCE)} confidence for all comparisons of the report together{even}."


def how_decided(summary: Summary, comparison: Comparison) -> Iterator[str]:
    """What the words mean, what they are based on, and what would decide the undecided ones."""
    ratios = [pair.ratio for pair in comparison.speed_ups]
    words = {ratio.word for ratio in ratios}
    own = any(
        row.measured and row.measured.launches for pair in comparison.speed_ups for row in (pair.row, pair.reference)
    )
    confidence = f"{percent(ALARM_CONFIDENCE)} confidence for {_together(comparison)}"
    if FASTER in words:
        yield f"A name alone: this side is faster, with {confidence}."
    if EVEN in words:
        yield f"Even: the interval lies within {percent(MARGIN)} of 1."
    bases = {ratio.basis for ratio in ratios}
    if "mixed sources" in bases:
        yield (
            f"{UNDECIDED.capitalize()}: launches of different sources (stale) decide nothing. Without --keep-stale,"
            " `bench run` measures the stale ones again."
        )
    if any(ratio.off and ratio.word == UNDECIDED for ratio in ratios):
        yield f'{UNDECIDED.capitalize()}: what is doubted may be the whole difference; "{DOUBTS}" says why.'
    tips = [ratio.tips_at for ratio in ratios if ratio.has_winner and ratio.tips_at]
    known = [(pair.row, pair.reference) for pair in comparison.speed_ups if pair.ratio.basis == "variation"]
    yield from how_launches_vary(bases, summary.variations, tips, set(map(fewest_launches, known)), own=own)
    if any(ratio.word == TOO_CLOSE for ratio in ratios):
        decide = " More launches decide: `bench run` with a larger measure.launches, or with --until 2%."
        yield f"{TOO_CLOSE.capitalize()}: a winner needs {confidence}.{decide if own else ''}"


def fewest_launches(sides: Iterable[Row]) -> int:
    """Of the side that has the fewest."""
    return min(len(row.measured.launches) if row.measured else 0 for row in sides)


def how_launches_vary(
    bases: Container[Basis],
    variations: Sequence[LaunchVariation],
    tips: Sequence[float],
    fewest: Collection[int],
    *,
    own: bool,
) -> Iterator[str]:
    """What the intervals of sides with few launches rest on.

    Args:
        tips: at which standard deviation between launches a verdict would fall, of each that says which side is faster.
        fewest: `fewest_launches` of each ratio that rests on the variation of the machine.
        own: whether `bench` launched a side, and so can launch more.
    """
    if "variation" in bases and variations:
        known = "; ".join(
            f"{percent(variation.sd)} ({variation.source}, {variation.degrees} degrees of freedom)"
            for variation in variations
        )
        number, own_too = "fewer than three", ""
        if max(fewest) >= ENOUGH_LAUNCHES:
            number = "three or four" if min(fewest) >= ENOUGH_LAUNCHES else "fewer than five"
            own_too = "; the variation of three or four launches counts if it is larger"
        yield (
            f"Sides with {number} launches: launches of this machine differ by {known}, standard deviation{own_too}."
        )
    if "assumed" in bases:
        hold = f"; all winners hold unless it is more than {percent(min(tips))}" if tips else ""
        measure = f" `bench run` with {MORE_LAUNCHES}, or `bench calibrate` once for this machine, measures it."
        yield (
            "Fewer than three launches a side: the interval assumes that launches vary by"
            f" {percent(ASSUMED.sd)} (standard deviation){hold}.{measure if own else ''}"
        )


def _together(comparison: Comparison) -> str:
    n = comparison.comparisons
    return f"all {n} comparisons of the report together" if n > 1 else "this comparison"


def nothing_varies(summary: Summary, axis: str) -> tuple[str, ...]:
    """One sentence if fewer than two values of ``axis`` were measured, else none."""
    cells = [cell for cell in summary.cells if axis in cell.controlled]
    values = dict.fromkeys(setting(axis, cell.controlled[axis]) for cell in cells)
    measured = dict.fromkeys(setting(axis, cell.controlled[axis]) for cell in cells if cell.best)
    if len(values) == 1:
        return (f"{caption(axis)} is {next(iter(values))} in all results: nothing to compare.",)
    if len(measured) == 1:
        return (f"{caption(axis)} is {next(iter(measured))} in all results that were measured: nothing to compare.",)
    return ()


def refusals(summary: Summary, comparison: Comparison) -> list[str]:
    """One sentence for each pair that was not compared, with the fields that differ."""
    sentences = [
        f"{cell_name(summary, refused.one.rows[0])} is not compared with {cell_name(summary, refused.other.rows[0])}:"
        f" they differ in {fields_in_words(refused.fields, refused.one.controlled, refused.other.controlled)}."
        for refused in comparison.refused
    ]
    return [*sentences, "More pairs are not compared; these are the first."] if comparison.more_refused else sentences
