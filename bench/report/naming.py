"""Names of rows, cells, settings and searches in words. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from bench.errors import beginning, one_line
from bench.records.outcome import Result
from bench.records.plan import CellPlan
from bench.records.verdict import Stopped, Verdict
from bench.report.rows import Row, Summary
from bench.statistics.intervals import Interval
from bench.units import UNKNOWN, memory_needed, memory_size

VALUE_LIMIT = 100
"""Length of a setting's value in a table: each row would be padded to a longer one."""
MICRO_BATCHES_CAPTION = "accumulate"
"""What tables call the micro-batches of a step, as a matrix does."""
REASON_LIMIT = 400
"""Length of a reason in a table or a sentence; the result's file holds the complete one."""


def row_name(summary: Summary, row: Row) -> str:
    """``ddp, num_cams 4, batch 8``."""
    return f"{cell_name(summary, row)}, {batch_in_words(row)}"


def batch_in_words(row: Row) -> str:
    """``batch 8``; ``micro-batch 8, accumulate 4`` where several make a global batch."""
    if row.global_batch is None:
        return f"batch {batch_of(row)}"
    return f"micro-batch {batch_of(row)}, {MICRO_BATCHES_CAPTION} {row.micro_batches}"


def micro_batches_in_words(plan: CellPlan) -> list[str]:
    """How many make a step; with a global batch, another number at each batch."""
    cell = plan.cell
    if not cell.accumulates:
        return []
    if cell.train.global_batch is None:
        return [f"{MICRO_BATCHES_CAPTION} {cell.micro_batches(1)}"]
    if plan.search:
        return [f"{MICRO_BATCHES_CAPTION} up to a global batch of {cell.train.global_batch}"]
    return [f"{MICRO_BATCHES_CAPTION} {cell.micro_batches(batch)} at batch {batch}" for batch in plan.batches]


def batch_of(row: Row) -> str:
    """The batch per rank, with a mark if other sources made the row than the newest of its workload."""
    return f"{row.batch_per_rank}{' (stale)' if row.stale else ''}"


def result_batch(result: Result) -> str:
    """The batch of a result, marked if it has few steps, and the launch if it is a further one."""
    return f"{result.attempt.batch_per_rank}{few_steps(result.attempt.short)}{further_launch(result.attempt.launch)}"


def further_launch(launch: int) -> str:
    """The addition to the name of an attempt that is not the first launch."""
    return f" (launch {launch})" if launch > 1 else ""


def few_steps(short: bool) -> str:
    """The addition to the name of an attempt with few steps."""
    return " (short trial)" if short else ""


def cell_name(summary: Summary, row: Row) -> str:
    """The cell of a row by the settings that differ between cells: ``ddp, num_cams 4``."""
    return settings_name(row.settings, summary.columns) or str(row.settings["backend"])


def settings_name(settings: Mapping[str, JsonValue], names: Iterable[str]) -> str:
    """Some settings as one name: ``ddp, num_cams 4``. Of the backend, only the value. At a global batch, micro-batches
    belong to the batch: see `batch_in_words`."""
    if settings.get("global_batch") is not None:
        names = [name for name in names if name != MICRO_BATCHES_CAPTION]
    parts = {name: setting(name, settings[name]) if name in settings else UNKNOWN for name in names}
    return ", ".join(value if name == "backend" else f"{caption(name)} {value}" for name, value in parts.items())


def value_of(row: Row, name: str) -> str:
    """A row's setting in words; n/a where it is unknown."""
    if name == MICRO_BATCHES_CAPTION and row.global_batch is not None:
        return str(row.micro_batches)
    return setting(name, row.settings[name]) if name in row.settings else UNKNOWN


def setting(name: str, value: JsonValue) -> str:
    """A setting's value in words, of which what follows `VALUE_LIMIT` is left out."""
    match value:
        case bool():
            return "on" if value else "off"
        case None:
            return "none"
        case int() if name.endswith("_bytes"):
            return memory_size(value)
        case list() if name == "hardware":
            return one_line(" + ".join(dict.fromkeys(str(part) for part in value if part is not None)) or UNKNOWN)
    return beginning(str(value), VALUE_LIMIT)


def caption(name: str) -> str:
    """A setting's name without its unit, because `setting` writes the unit."""
    return one_line(name.removesuffix("_bytes"))


def short_reason(reason: str | None) -> str:
    """A reason on one line, of which what follows `REASON_LIMIT` is left out; empty where there is none."""
    return beginning(reason or "", REASON_LIMIT)


def isolation_in_words(way: str) -> str:
    """How an attempt was kept apart from others."""
    ways = {
        "fork": "a fresh fork of a rank server, which has imported everything and never used the device",
        "launch": "a separate accelerate launch",
        "script": "the command of the matrix",
    }
    return ways.get(way, f"the launcher {way}")


def search_end(verdict: Verdict | Stopped, needs_bytes: int | None = None) -> str:
    """Why a search ended.

    Args:
        needs_bytes: what the smallest batch takes, where not even that one fits.
    """
    if isinstance(verdict, Stopped):
        return verdict.reason
    if needs_bytes is None:
        return verdict.why
    return f"{verdict.why}; {verdict.fails} takes {memory_needed(needs_bytes)} a rank"


def listed(texts: Sequence[str]) -> str:
    """Different texts, each once, as one short reason."""
    return short_reason("; ".join(dict.fromkeys(texts)))


def ends(interval: Interval, digits: int = 2) -> str:
    """``1.14 to 1.26``; beyond a factor of 1000 an interval only says that nothing is known. It is not shown to reach 1
    where it does not: ``1.003 to 1.048``."""
    low, high = interval
    if low >= 1000:
        return "over 1000"
    near = min(abs(low - 1), abs(high - 1)) < 0.5 * 10**-digits
    if near and not low <= 1 <= high and digits < 4:
        return ends(interval, digits + 1)
    return f"{low:.{digits}f} to " + (f"{high:.{digits}f}" if high < 1000 else "over 1000")
