"""The batch search of one cell: observations in, the next attempt or the verdict out. Pure."""

from collections.abc import Iterator, Sequence

from bench.records.verdict import Answer, Certificate, Goal, OfDivisors, Verdict
from bench.search.data import Observation, Scout, Step, Try, evidence, rate_error
from bench.search.max_batch import Bracket, settle
from bench.search.points import batches_up_to_max
from bench.search.prior import Line, Prior
from bench.search.rivals import choose
from bench.search.throughput import further
from bench.units import counted, percent, rate

__all__ = ["Line", "Observation", "Prior", "Scout", "Try", "next_step", "rate_error"]


def next_step(
    observations: Sequence[Observation],
    goal: Goal,
    *,
    start: int | None = None,
    prior: Prior | None = None,
    scouts: bool = True,
) -> Step:
    """What to do next for one cell.

    The result depends only on the arguments, so an interrupted search resumes from what is stored. The caller adds the
    observations of the step and calls again. A scout that observed nothing counts as one hint: the smallest batch ran
    out of memory. An attempt that hangs or fails adds no observation, so the next call returns the same step.

    Args:
        observations: of this cell, in the order they were made, including those of earlier searches.
        start: another cell's max. It only adds one batch to the scout's walk.
        prior: what a plan expects of memory. It only decides which batches are tried, and whether a scout walks first.
        scouts: whether the next step may be a scout.
    """
    sorted_evidence = evidence(observations, goal)
    settled = settle(observations, sorted_evidence, goal, start, prior, scouts=scouts)
    if isinstance(settled, Scout | Try):
        return settled
    bracket, certificate = settled
    batches = batches_up_to_max(sorted_evidence, bracket.fits, goal)
    final = certificate != "contradicted"
    measured = final and any(point.rate for point in batches.points.values())
    attempt = further(batches, goal, full_only=sorted_evidence.full_only) if measured else None
    if attempt:
        return attempt
    best, safe = choose(batches, final=final)
    verdict = Verdict(
        max_batch_per_rank=bracket.fits or None,
        certificate=certificate,
        fits=bracket.fits or None,
        fails=bracket.fails,
        best=best,
        safe=safe,
        points=sum(point.rate > 0 for point in batches.points.values()),
        thrashing=tuple(sorted(batches.thrashing)),
        peak_spread=batches.peak_spread,
        why="",
    )
    words = [
        _max_in_words(bracket, certificate, goal, sorted_evidence.seen),
        *_answers_in_words(verdict, goal),
        *_samples_in_words(sorted_evidence.seen, safe or best),
    ]
    return verdict.model_copy(update={"why": "; ".join(filter(None, words))})


def _max_in_words(bracket: Bracket, certificate: Certificate, goal: Goal, seen: Sequence[Observation]) -> str:
    fits, fails = bracket
    match certificate:
        case "next_fails":
            return f"{fits} fits and {fails} does not"
        case "tolerance":
            return f"{fits} fits and {fails} does not, within the tolerance of {percent(goal.tolerance)}"
        case "cap_fits":
            return f"{fits} fits, the largest batch allowed"
        case "nothing_fits":
            finer = "; a smaller batch may, with a smaller granularity" if goal.granularity > 1 else ""
            return f"not even {goal.granularity} fits{finer}"
        case "contradicted" if fails == goal.granularity:
            fitted = max(o.batch for o in seen if o.outcome == "ok")
            return (
                f"{fails} does not fit, and {fitted} does: memory does not grow with the batch here, and a search takes"
                " for granted that it does; measure the batches themselves"
            )
        case "contradicted":
            bounds = f"{fits} fits and nothing up to it has failed" if fits else f"{fails} does not fit"
            return f"{bounds}, but later a batch that had fitted, or a smaller one, ran out of memory: max is uncertain"


def _answers_in_words(verdict: Verdict, goal: Goal) -> Iterator[str]:
    best, safe, thrashing = verdict.best, verdict.safe, verdict.thrashing
    if best:
        of = counted(verdict.points, "fresh point") + (
            f" at {goal.candidates}"
            if isinstance(goal, OfDivisors)
            else f" at multiples of {goal.granularity}"
            if goal.granularity > 1
            else ""
        )
        yield f"{best.batch} is fastest at {rate(best.samples_per_s)} samples/s, of {of}{_within_noise(best)}"
    if safe and best and safe.batch != best.batch:
        yield f"{safe.batch} is fastest within the headroom at {rate(safe.samples_per_s)} samples/s"
    if best and best.held is not None and verdict.peak_spread and f"{verdict.peak_spread:.1%}" != "0.0%":
        yield f"peaks of one batch differ by up to {percent(verdict.peak_spread)} of capacity, which safe leaves free"
    if best and best.held is None:
        yield "its memory use is unknown"
    elif best and not safe:
        yield "no measured batch is within the headroom" + (f": try {goal.remedy}" if goal.remedy else "")
    elif verdict.points == 1 and goal.granularity > 1:
        yield "a smaller granularity compares more batches"
    if thrashing:
        listed = ", ".join(map(str, thrashing))
        yield f"{listed} fits but thrashes" if len(thrashing) == 1 else f"{listed} fit but thrash"


def _samples_in_words(seen: Sequence[Observation], answer: Answer | None) -> Iterator[str]:
    """What the answer's memory was seen with, and what was not looked at."""
    of_answer = [o for o in seen if answer and o.batch == answer.batch and o.steps and o.outcome == "ok"]
    if not of_answer:
        return
    last, sizes = of_answer[-1], of_answer[-1].sizes
    steps = counted(last.steps or 0, "measured step")
    longest = f", the longest sample {last.longest:,} tokens" if last.longest else ""
    if grown := [o for o in of_answer if o.grew_at]:
        yield f"its peak still grew in step {grown[-1].grew_at} of {grown[-1].steps}: a longer training may need more"
    alike = sizes is None or sizes.largest_batch is None
    if sizes is None or alike:
        yield f"its memory was seen in {steps}{longest}"
    else:
        found = (
            "the worst batch of the workload"
            if sizes.samples is None
            else f"samples hold {sizes.smallest:,} to {sizes.largest:,} values: a batch of the largest"
        )
        yield (
            f"{found}, {sizes.largest_batch:,} values, fits; in {steps}, batches held up to"
            f" {sizes.largest_measured_batch:,}{longest}"
        )
    if sizes and sizes.scanned and sizes.samples and sizes.scanned < sizes.samples:
        yield (
            f"bench looked at {sizes.scanned:,} of {sizes.samples:,} samples{', all of one size' if alike else ''}:"
            " with larger ones, the batch may not fit"
        )


def _within_noise(answer: Answer) -> str:
    return f", within noise of {', '.join(map(str, answer.even_with))}" if answer.even_with else ""
