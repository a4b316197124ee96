"""The table of what each search over batch came to."""

from collections.abc import Callable, Sequence

from bench.records.verdict import Goal, Probe, Stopped, Verdict
from bench.report.rows import Summary
from bench.report.tables.attempts import REASON, REASON_LIMIT, Table, caption, one_line, setting
from bench.units import UNKNOWN, memory_needed, percent, rate

ASKED: dict[str, Callable[[Goal], str]] = {
    "headroom": lambda goal: percent(goal.headroom),
    "granularity": lambda goal: str(goal.granularity),
    "tolerance": lambda goal: percent(goal.tolerance),
    "max_batch": lambda goal: str(goal.max_batch),
}
"""What a search was asked for: where two were asked otherwise, their answers differ."""


def verdicts(probes: Sequence[Probe], summary: Summary | None = None) -> Table:
    """What each search over batch came to.

    Args:
        summary: of the searches' results: what else tells their cells apart than the axes.
    """
    # A search's file does not say on which machine it ran.
    columns = [name for name in summary.columns if name != "machine"] if summary else []
    settings = {cell.cell.id: cell.rows[0].settings for cell in summary.cells} if summary else {}
    of_probe = [{**settings.get(probe.cell.id, {}), **probe.axes} for probe in probes]
    names = list(dict.fromkeys([*(name for probe in probes for name in probe.axes), *columns]))
    texts = [{name: setting(name, one[name]) if name in one else UNKNOWN for name in names} for one in of_probe]
    varying = [name for name in names if name == "backend" or len({text[name] for text in texts}) > 1]
    asked = [name for name in ASKED if len({ASKED[name](probe.goal) for probe in probes}) > 1]
    same = [f"{name} {ASKED[name](probe.goal)}" for probe in probes[:1] for name in ASKED if name not in asked]
    numbers = ("max", "does not fit", "best", "best samples/s", "safe", "safe samples/s", "safe holds", "points")
    return Table(
        title="Batch per rank",
        headers=(*map(caption, varying), *asked, *numbers, REASON),
        rows=tuple(
            (
                *(text[name] for name in varying),
                *(ASKED[name](probe.goal) for name in asked),
                *_verdict_values(probe),
            )
            for probe, text in zip(probes, texts, strict=True)
        ),
        numeric=frozenset(numbers),
        notes=(
            "max: the largest batch that fit a fresh process, for a few steps unless it is best or safe too. best:"
            " highest throughput. safe: highest throughput within the headroom; both in fresh processes, at the full"
            " step count. points: fresh batches that best and safe rest on. safe holds: share of capacity."
            + (f" Asked for: {', '.join(same)}." if same else ""),
        ),
    )


def _verdict_values(probe: Probe) -> list[str]:
    found = probe.found
    if isinstance(found, Stopped):
        return [UNKNOWN] * 8 + [one_line(why(found), REASON_LIMIT)]
    best, safe = found.best, found.safe
    return [
        *(UNKNOWN if batch is None else str(batch) for batch in (found.max_batch_per_rank, found.fails)),
        *([str(best.batch), rate(best.samples_per_s)] if best else [UNKNOWN] * 2),
        *([str(safe.batch), rate(safe.samples_per_s), percent(safe.held)] if safe else [UNKNOWN] * 3),
        str(found.points),
        one_line(why(found, probe.needs_bytes), REASON_LIMIT),
    ]


def why(found: Verdict | Stopped, needs_bytes: int | None = None) -> str:
    """How a search ended.

    Args:
        needs_bytes: what the smallest batch takes, where not even that fits.
    """
    if isinstance(found, Stopped):
        return found.reason
    return found.why if needs_bytes is None else f"{found.why}; {found.fails} takes {memory_needed(needs_bytes)} a rank"
