"""What `bench run --best` certifies: how much faster another setting may be, and what ruled out the others."""

import math
from collections.abc import Collection, Iterator, Sequence

from bench.records.best import Best, Fastest, Ruled
from bench.report.advice import Advice, Certified
from bench.report.naming import listed
from bench.report.tables.table import Lines
from bench.units import counted, duration, percent

TITLE = "What was ruled out"
RULED: dict[Ruled, str] = {
    "launched": "launched and unlikely to be so much faster",
    "short": "slower in a short attempt",
    "others": "not measured and unlikely to be so much faster, by a model of those that were",
    "plan": "not measured, as they cannot fit by their plan",
    "bound": "slower by the lower bound of their step",
    "memory": "do not fit",
    "headroom": "beyond the headroom",
    "failed": "failed",
    "invalid": "invalid",
    "skipped": "skipped",
    "open": "not ruled out",
}
NOT_MEASURED: tuple[Ruled, ...] = ("others", "plan", "bound", "open")


def certificates(bests: Collection[Best], advice: Sequence[Advice]) -> Lines:
    """A sentence for each task, and how much was measured.

    Args:
        advice: what it certifies of an answer is not repeated.
    """
    told = [task.certified.answer for task in advice if task.certified and not task.unsure]
    stand = [task.stands for task in advice]
    lines = [line for best in bests for line in certificate(best, told, stand)]
    if any(task.unsure for task in advice) and any(best.answers for best in bests):
        lines.append("This takes the figures as they are, and some that decide are doubted: see below.")
    return Lines(title=TITLE, lines=tuple(lines))


def surest(certified: Certified) -> str:
    """``no setting of 48 can be more than 2.7 % faster (95 % confidence)``."""
    answer, confidence = certified
    if answer.settings == 1:
        return "the only setting"
    sure = f"{confidence:.0%}".replace("%", " %")
    return f"no setting of {answer.settings} can be more than {_within(answer)} faster ({sure} confidence)"


def certificate(
    best: Best, told: Collection[Fastest] = (), stand: Collection[Fastest | None] | None = None
) -> Iterator[str]:
    """The sentences of one run.

    Args:
        told: answers that are not repeated.
        stand: those that results still support; None: all.
    """
    if best.ended is None:
        return  # the answer says so
    for answer in best.answers:
        task = f"For {answer.task}: " if answer.task else ""
        if stand is not None and answer not in stand:
            told_before = f"{task}{answer.name} was certified, and results now say otherwise"
            yield f"{told_before}: `bench run --best` certifies anew."
            continue
        if answer not in told:
            yield f"{task}{answer.name}: {surest(Certified(answer, best.confidence))}."
        if ruled := [f"{answer.ruled_out[by]} {words}" for by, words in RULED.items() if answer.ruled_out.get(by)]:
            yield f"The others: {', '.join(ruled)}."
    if not best.answers:
        yield "No setting can be an answer: none was measured in full, is valid, and is within the headroom."
    elif best.unanswered:
        yield f"No answer for {listed(best.unanswered)}: nothing that could be one was measured in full."
    left = any(answer.ruled_out.get(by) for answer in best.answers for by in NOT_MEASURED)
    rest = (
        " Settings are shown at the fastest batch that was measured; leave out --best to measure the rest."
        if left or best.ended == "budget"
        else ""
    )
    made = (
        f"{counted(best.attempts, 'launch')} in {duration(best.took_s)}; the matrix has {counted(best.of, 'setting')}."
    )
    yield f"{made}{_why_wider(best)}{rest}"


def _why_wider(best: Best) -> str:
    """Why it ended with more than was asked for; empty if it did not."""
    if best.ended == "budget":
        return f" The budget of {duration(best.budget_s)} is spent: the same command goes on with a new one."
    if all(answer.within <= best.margin for answer in best.answers):
        return ""
    asked, much = percent(best.margin), "what may be faster was launched as often as is allowed"
    if not best.frugal:
        return f" It ended before {asked} was certain: {much}."
    late = "late in a run, a wider share is enough" if best.ended == "certified" else much
    return f" It ended before {asked} was certain: {late} (`bench guide best`)."


def _within(answer: Fastest) -> str:
    """Rounded up."""
    return percent(max(math.ceil(answer.within * 1000), 1) / 1000)
