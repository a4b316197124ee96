"""The table of what each search over batch came to."""

from collections.abc import Sequence

from bench.probe import Probe, Stopped
from bench.report.tables import REASON, REASON_LIMIT, Table, one_line, setting
from bench.units import UNKNOWN, gib, percent, rate


def verdicts(probes: Sequence[Probe]) -> Table:
    """What each search over batch came to."""
    names = list(dict.fromkeys(name for probe in probes for name in probe.axes))
    varying = [name for name in names if name == "backend" or len({str(probe.axes.get(name)) for probe in probes}) > 1]
    numbers = ("max", "does not fit", "best", "best samples/s", "safe", "safe samples/s", "safe holds", "points")
    return Table(
        title="Batch per rank",
        headers=(*varying, *numbers, REASON),
        rows=tuple(
            (*(setting(name, probe.axes.get(name)) for name in varying), *_verdict_values(probe)) for probe in probes
        ),
        numeric=frozenset(numbers),
        notes=(
            "max: the largest batch that fit a fresh process, for a few steps unless it is best or safe too. best:"
            " highest throughput. safe: highest throughput within the headroom; both in fresh processes, at the full"
            " step count. points: fresh batches that best and safe rest on. safe holds: share of capacity.",
        ),
    )


def _verdict_values(probe: Probe) -> list[str]:
    found = probe.found
    if isinstance(found, Stopped):
        return [UNKNOWN] * 8 + [one_line(found.reason, REASON_LIMIT)]
    best, safe = found.best, found.safe
    return [
        *(UNKNOWN if batch is None else str(batch) for batch in (found.max_batch_per_rank, found.fails)),
        *([str(best.batch), rate(best.samples_per_s)] if best else [UNKNOWN] * 2),
        *([str(safe.batch), rate(safe.samples_per_s), percent(safe.held)] if safe else [UNKNOWN] * 3),
        str(found.points),
        one_line(found.why + (f": it takes {gib(probe.needs_bytes)} GiB" if probe.needs_bytes else ""), REASON_LIMIT),
    ]
