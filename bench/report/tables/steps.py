"""What the measured steps were like: timing windows, phases, the work of each rank, compilation and checkpoints."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from bench.records.figures import Figure
from bench.records.phases import PHASE_NAMES, REST, SHOWN_PHASES
from bench.records.rank_outcome import Checkpoint, Compilation
from bench.report.critical_rank import RankPhase, Spread
from bench.report.rows import P95_NEEDS, Phases, Row, Sampled, Summary, Times
from bench.report.tables.raw_matrix import detailed, details_of, figure_columns, of_rank, sampled, times_columns
from bench.report.tables.table import Column, Number, Table, of_part
from bench.statistics.straggler import CHANCE, SHARE, USUAL
from bench.units import UNKNOWN, in_table, ms, percent, size

Statistic = Literal["mean", "share", "median", "p95"]
STATISTICS: dict[Statistic, Callable[[Times], float | None]] = {
    "mean": lambda times: times.mean_s,
    "median": lambda times: times.median_s,
    "p95": lambda times: times.p95_s,
}

P95_NOTE = f"p95 needs {P95_NEEDS} steps"
WAITING_NOTE = "The times contain waiting for other ranks: the report's table Own work of ranks tells the two apart."
DEEPSPEED_NOTE = (
    "Under DeepSpeed, the engine runs the optimizer step inside backward: bwd contains optim_step and unscale_clip,"
    " which are near zero themselves. Compare the total between backends."
)
REST_NOTE = (
    "rest: of an observed script, all that hooks see in no other phase. Its steps are timed without synchronizing."
)
SHORT = 0.01
"""Share of the step below which *Own work of ranks* leaves a phase out."""


def steps(summary: Summary) -> Table:
    """Both timing windows and the loss: one row per result that bench measured."""
    columns: list[Column[Sampled]] = [
        *of_part(lambda measured: measured.slowest.step, times_columns()),
        Number("synchronized ms", lambda measured: ms(measured.windows_s and measured.windows_s[1])),
        Number("difference", lambda measured: percent(measured.instrumentation_share)),
        Column("slowest rank", lambda measured: measured.critical_rank.words if measured.critical_rank else UNKNOWN),
        Number("first loss", partial(_loss, 0)),
        Number("last loss", partial(_loss, -1)),
    ]
    return details_of(
        summary,
        "Steps",
        sampled,
        columns,
        notes=(
            f"mean, median, p95: of the slowest rank in the throughput window; {P95_NOTE}. synchronized: mean total of"
            " the phase window. difference: synchronization overhead and noise; not part of throughput. slowest rank:"
            " that which the others wait for in the phase window.",
            *_of_several(summary, "times are of all; slowest rank and losses are of the one with the median step"),
        ),
    )


def _of_several(summary: Summary, which: str = "all columns are of the one with the median step") -> list[str]:
    """Which launches the columns are of."""
    return [f"Of several launches, {which}."] if any(row.launches for row in summary.rows) else []


def _loss(step: int, measured: Sampled) -> str:
    return f"{measured.losses[step]:#.4g}" if measured.losses else UNKNOWN


def phases(summary: Summary, statistic: Statistic) -> Table:
    """The phase window, one row per measured result: the ``mean``, ``median``, ``p95`` or ``share`` of every phase."""
    known = {name for row in summary.rows if row.phases for name in row.phases.parts}
    parts = [name for name in SHOWN_PHASES if name in known] if REST in known else PHASE_NAMES
    names = parts if statistic == "share" else (*parts, "total")

    def windows(row: Row) -> Iterator[Phases]:
        if row.phases and any(_of_phase(name, statistic, row.phases) != UNKNOWN for name in names):
            yield row.phases

    rows = [row for row, _ in detailed(summary, windows)[0]]
    return details_of(
        summary,
        "Phases, % of total" if statistic == "share" else f"Phases, {statistic} ms",
        windows,
        [
            Number("rank", lambda window: in_table(window.rank, "count")),
            *(Number[Phases](name, partial(_of_phase, name, statistic)) for name in names),
        ],
        notes=(
            "rank: the slowest rank of the phase window; the times are those of this rank.",
            *_of_several(summary),
            *([WAITING_NOTE] if any(row.sampled and row.sampled.critical_rank for row in rows) else []),
            *([f"{P95_NOTE}."] if statistic == "p95" else []),
            *([REST_NOTE] if REST in known else []),
            *([DEEPSPEED_NOTE] if any(map(under_deepspeed, rows)) else []),
        ),
    )


def _of_phase(name: str, statistic: Statistic, window: Phases) -> str:
    if statistic == "share":
        return percent(window.share(name)).removesuffix(" %")
    times = window.of(name)
    return ms(STATISTICS[statistic](times) if times else None)


def under_deepspeed(row: Row) -> bool:
    if row.ranks:  # in a script's own loop, hooks see both
        return any(rank.raw.regime.distributed_type == "DEEPSPEED" and not rank.raw.observed for rank in row.ranks)
    return str(row.settings["backend"]).startswith("zero")


def own_work(summary: Summary) -> Table:
    """How far ranks are apart, what each works itself and what it waits: one row for each phase of a result with
    several ranks."""

    def long_phases(row: Row) -> list[RankPhase]:
        phases = row.sampled.critical_rank.phases if row.sampled and row.sampled.critical_rank else ()
        return [phase for phase in phases if phase.time_s.max_s >= SHORT * phases[-1].time_s.max_s]

    return details_of(
        summary,
        "Own work of ranks, ms",
        long_phases,
        [
            Column("phase", lambda phase: phase.name),
            *_spread_columns("", lambda phase: phase.time_s),
            *_spread_columns("own ", lambda phase: phase.own_s),
        ],
        notes=(
            "Means of each phase in the phase window: smallest, median and largest of all ranks, and the rank of the"
            " largest. own: without the time in collectives, in which a rank waits for others and for their data."
            " Waiting for its own samples is own work. A rank that waits for another one has a long phase and little"
            f" own work. Phases that take less than {percent(SHORT)} of the step on every rank are left out.",
            f"A straggler costs more than {percent(SHARE)} of the step. In at least {percent(USUAL)} of the steps, its"
            " own work exceeds that of every other rank by more than this share, in the whole step or in one and the"
            f" same phase. If steps are independent, chance names a rank in at most {percent(float(CHANCE))} of"
            " windows. Rows to doubt names the straggler. Two slow ranks hide each other: look for them in this table.",
            *_of_several(summary),
        ),
    )


def _spread_columns(prefix: str, spread_of: Callable[[RankPhase], Spread | None]) -> list[Column[RankPhase]]:
    def column(name: str, words: Callable[[Spread], str]) -> Column[RankPhase]:
        return Number(prefix + name, lambda phase: words(spread) if (spread := spread_of(phase)) else UNKNOWN)

    return [
        column("min", lambda spread: ms(spread.min_s)),
        column("median", lambda spread: ms(spread.median_s)),
        column("max", lambda spread: ms(spread.max_s)),
        column("max's rank", lambda spread: str(spread.rank)),
    ]


def ranks(summary: Summary) -> Table:
    """Node, mean step and peak memory: one row per result that bench measured, with one value a rank in each column."""
    nodes = any(rank.raw.node for row in summary.rows for rank in row.ranks)

    def of_each(figure: Figure, measured: Sampled) -> str:
        return ", ".join(of_rank(figure, rank) for rank in measured.ranks)

    columns: list[Column[Sampled]] = [
        Column("node", lambda measured: ", ".join(rank.raw.node or UNKNOWN for rank in measured.ranks)),
        Column("step ms", lambda measured: ", ".join(map(ms, measured.step_time_s_per_rank))),
        *(Column[Sampled](figure.header, partial(of_each, figure)) for figure in figure_columns(summary)),
    ]
    return details_of(
        summary,
        "Ranks",
        sampled,
        columns if nodes else columns[1:],
        notes=(
            "One value for each rank, rank 0 first. Ranks wait for each other in every step, so their step times"
            ' do not show a straggler: "Steps" names the rank that gates the step.',
            *_of_several(summary, "step ms is the mean of all, and the rest is of the one with the median step"),
        ),
    )


def compilation(summary: Summary) -> Table:
    """What torch.compile did: one row for each result of a compiled cell. Empty where nothing was compiled."""

    def of_slowest(row: Row) -> list[Compilation]:
        found = [rank.raw.compilation for rank in row.ranks if rank.raw.compilation]
        return sorted(found, key=lambda compiled: compiled.compile_s, reverse=True)[:1]

    return details_of(
        summary,
        "Compilation",
        of_slowest,
        [
            Number("compile ms", lambda compiled: ms(compiled.compile_s)),
            Number("graphs", lambda compiled: str(compiled.graphs)),
            Number("graph breaks", lambda compiled: str(sum(compiled.graph_breaks.values()))),
            Column("why", lambda compiled: "; ".join(compiled.graph_breaks), prose=True),
        ],
        notes=(
            "Of the rank that took longest. compile ms: in torch.compile; part of the warm-up, and of no measured step."
            " A graph break splits what is compiled: the parts between breaks are compiled one by one.",
            *_of_several(summary),
        ),
    )


def checkpoints(summary: Summary) -> Table:
    """What a checkpoint costs, and whether training goes on from it: one row for each result with one. Empty where
    none was measured."""

    def of_ranks(row: Row) -> Iterator[list[Checkpoint]]:
        if found := [rank.raw.checkpoint for rank in row.ranks if rank.raw.checkpoint]:
            yield found

    def losses(checkpoints: list[Checkpoint]) -> str:
        share = max(checkpoint.apart for checkpoint in checkpoints)
        if math.isinf(share):
            return "not finite"
        return "the same" if percent(share) == percent(0) else f"differ by {percent(share)}"

    return details_of(
        summary,
        "Checkpoints",
        of_ranks,
        [
            Number("save ms", lambda checkpoints: ms(max(checkpoint.save_s for checkpoint in checkpoints))),
            Number("load ms", lambda checkpoints: ms(max(checkpoint.load_s for checkpoint in checkpoints))),
            Number("on disk", lambda checkpoints: size(max(checkpoint.stored_bytes for checkpoint in checkpoints))),
            Column("next losses", losses),
        ],
        notes=(
            "save and load: until all ranks are done. The system may write files to the disk later, and read them from"
            " memory. next losses: of the steps after saving, and of the same steps after loading.",
            *_of_several(summary),
        ),
    )
