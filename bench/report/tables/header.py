"""The sections around the numbers: the head of the report, how it was measured, what is missing, where results are."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from bench.errors import one_line
from bench.records.cell import SWITCHES, Measure
from bench.records.machine import Hardware, Machine, StatedHardware
from bench.records.until import Until
from bench.report.controlled import ID, PARTIAL
from bench.report.missing import Missing
from bench.report.naming import caption, cell_name, isolation_in_words, setting, settings_name
from bench.report.rows import P95_NEEDS, Summary
from bench.report.tables.table import Facts, Lines, Table
from bench.units import UNKNOWN, counted, duration, gib, percent


def header(summary: Summary, untils: Sequence[Until] = ()) -> Facts:
    """What a reader must know before the numbers. Where machines differ, every value is listed."""
    settings = {key: value for key, value in summary.shared.items() if key not in SWITCHES or value != SWITCHES[key]}
    measuring = {key: value for key, value in settings.items() if key in Measure.model_fields}
    shared = {key: value for key, value in settings.items() if key not in measuring}
    facts = (
        ("Hardware", of_machines(summary, hardware_in_words)),
        ("Versions", of_machines(summary, versions_in_words)),
        ("Settings of the machine", of_machines(summary, _environment)),
        ("Commit", of_machines(summary, commit_in_words)),
        ("Same for all", _settings(shared)),
        ("Measuring", _settings(measuring)),
        *([("The same where known", _settings(partly))] if (partly := _partly_known(summary)) else []),
        ("Run", run_in_words(summary)),
        *(("Further launches", until_words(until)) for until in untils),
    )
    return Facts(title="", facts=facts)


def _partly_known(summary: Summary) -> dict[str, JsonValue]:
    """Settings that do not differ, and are not known of all cells, such as imported ones."""
    every = {name: value for cell in summary.cells for name, value in cell.rows[0].settings.items()}
    named = {*summary.columns, *summary.shared, ID}
    kept = {name: value for name, value in every.items() if name not in named and name not in PARTIAL}
    return {name: value for name, value in kept.items() if name not in SWITCHES or value != SWITCHES[name]}


def until_words(until: Until) -> str:
    """How further launches ended, as one sentence."""
    asked = percent(until.half_width)
    by = "measure.launches: auto" if until.auto else f"--until {asked}"
    if until.ended is None:
        return f"{by} was interrupted"
    are = "is" if until.wide == 1 else "are"
    wide = f"{until.wide} of {counted(until.comparisons, 'comparison')} {are} still wider"
    if until.widest is not None:
        wide += f", the widest ±{percent(until.widest)}"
    reasons = {
        "narrow": f"every comparison is that narrow ({until.comparisons} in all)",
        "budget": f"the budget of {duration(until.budget_s)} is spent, and {wide}",
        "launches": f"{wide}, but {until.most_launches} launches of one batch are the most, and failed ones end it",
        "no_pairs": "there was nothing to compare",
    }
    made = f"added {counted(until.launches, 'launch')} in {duration(until.took_s)}"
    return f"{by} {made}, for 95 % intervals of ±{asked}: {reasons[until.ended]}"


def until_options(until: Until) -> str:
    """What a command asked for: `` --until 2% --budget 90s``; nothing of launches that no option asked for."""
    if until.auto:
        return ""
    return f" --until {100 * until.half_width:g}%" + (f" --budget {until.budget_s:g}s" if until.budget_s else "")


def method(summary: Summary) -> Lines:
    """How it was measured."""
    sources = dict.fromkeys(one_line(row.source) for row in summary.rows if row.source)
    words = "Imported; means without samples, measured elsewhere, by other methods"
    lines = [f"{words}: {source}." for source in sources]
    if summary.isolations or not lines:
        isolation = " or ".join(map(isolation_in_words, summary.isolations)) or "none was launched"
        lines.append(f"Every attempt ran in fresh processes: {isolation}.")
        if any(rank.raw.observed for row in summary.rows for rank in row.ranks[:1]):
            lines += _OBSERVED
        if any(row.measured and not row.sampled and not row.source for row in summary.rows):
            lines += SCRIPTED
        if summary.isolations != ("script",):
            lines += _MEASURED
    return Lines(title="How it was measured", lines=tuple(lines), numbered=True)


SCRIPTED = [
    "A script measures itself: its step time, throughput and memory are its own figures, and what it does not state is"
    " n/a.",
    "samples/s of a script = batch per process x processes x micro-batches / its step time, or its own count over all"
    " processes.",
]
_OBSERVED = [
    "bench measures a script from outside, by hooks of torch's optimizers: a step ends with the optimizer's. Warm-up"
    " steps do not count, and bench synchronizes in no measured step. What was not seen is n/a.",
    "samples/s of a script = samples that its model took on all ranks in a step / mean step of the slowest rank.",
]
_MEASURED = [
    "Warm-up steps do not count. Steps of the throughput window contain no synchronization.",
    "samples/s = batch per rank x ranks x micro-batches / mean step of the slowest rank in the throughput window.",
    "Memory peaks are reset after warm-up and read after the throughput window, on every rank. GiB is 2^30 bytes.",
    "Ranks wait for each other in every step, so their mean steps hardly differ. Steps says which rank gates, from"
    " each rank's own work in the phase window.",
    "Phases come from separate steps that synchronize at every boundary, and are those of the slowest rank there;"
    f" p95 = sorted[int(0.95 * (n - 1))], for n of {P95_NEEDS} or more.",
    "All backends get the same seeded weights and samples; losses are means over ranks.",
]


def files(summary: Summary, *, scripts: bool = True) -> Facts:
    """Where the results are stored: each cell, and its folder below the run's; ``scripts``: see `Report`."""
    if not summary.isolations:
        holds = "the figures as the source gives them."
    elif scripts:
        holds = "the raw samples of every rank, and b<batch>/command.sh measures that row again by hand."
    else:
        holds = "the raw samples of every rank."
    return Facts(
        title="Where the results are stored",
        facts=tuple((cell_name(summary, cell.rows[0]), f"attempts/{cell.cell.slug}/") for cell in summary.cells),
        notes=(f"Below the run's folder. b<batch>/result.json of a cell holds {holds}",),
    )


def not_measured(cells: Sequence[Missing], unreadable: Mapping[str, str] | None = None) -> Table:
    """Planned attempts without a result, one row a cell, and one a file that cannot be read, with what is wrong."""

    def why(cell: Missing) -> str:
        if cell.launches is not None:
            return "{} of {} launches".format(*cell.launches)
        if cell.best:
            return "--best has not ended"
        return "no result yet" + (f"; a walk trained batches up to {cell.walked_to}" if cell.walked_to else "")

    planned = [
        (
            "what --best needs" if cell.best else settings_name(cell.axes, cell.axes),
            ", ".join([*map(str, cell.batches), *(["search"] if cell.search else [])]),
            why(cell),
        )
        for cell in cells
    ]
    torn = [
        (one_line(file), "", one_line(f"cannot be read: {reason}", 200)) for file, reason in (unreadable or {}).items()
    ]
    return Table(
        title="Not measured",
        headers=("cell or file", "batch per rank", "why"),
        rows=(*planned, *torn),
        notes=("Run the same matrix into the same folder again to measure what has no result yet.",),
    )


def computer(machine: Machine) -> str:
    """Without its system."""
    return hardware_in_words(machine.model_copy(update={"system": None}))


def short_commit(machine: Machine) -> str:
    """With the first digits of its hash."""
    return commit_in_words(machine.model_copy(update={"git_commit": machine.git_commit and machine.git_commit[:12]}))


def _settings(settings: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"{caption(key)} {setting(key, value)}" for key, value in settings.items()) or UNKNOWN


def of_machines(summary: Summary, words: Callable[[Machine], str]) -> str:
    return " / ".join(dict.fromkeys(one_line(words(machine)) for machine in summary.machines)) or UNKNOWN


def hardware_in_words(machine: Machine) -> str:
    hardware = machine.hardware
    host = [machine.cpu, f"{hardware.cores} cores" if isinstance(hardware, Hardware) else None]
    memory = f"{gib(hardware.memory_bytes)} GiB" if hardware.memory_bytes is not None else "memory n/a"
    if hardware.device == "cpu":
        parts = [[*host, memory], [machine.system]]
    else:
        models = Counter(machine.accelerators)
        gpus = [f"{count} x {model}" for model, count in models.items()] or [counted(hardware.devices, "GPU")]
        each = " each" if hardware.memory_bytes is not None else ""
        parts = [[*gpus, memory + each], host, [machine.system]]
    return "; ".join(filter(None, (", ".join(filter(None, part)) for part in parts)))


def versions_in_words(machine: Machine) -> str:
    versions = {"bench": machine.bench, "python": machine.python, **machine.libraries, "driver": machine.driver}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None) or UNKNOWN


def _environment(machine: Machine) -> str:
    settings = {**machine.threads, **(machine.environment or {})}
    if isinstance(machine.hardware, StatedHardware) and machine.allocator is None:
        return UNKNOWN
    if machine.hardware.device == "cuda":
        settings = {"CUDA allocator": machine.allocator or "default", **settings}
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "no environment variables set"


def commit_in_words(machine: Machine) -> str:
    if machine.git_commit is None:
        return UNKNOWN
    state = {None: " (clean or not: n/a)", True: " (dirty: with uncommitted changes)", False: " (clean)"}
    return machine.git_commit + state[machine.git_dirty]


def run_in_words(summary: Summary) -> str:
    cells = f"{counted(summary.n_attempts, 'attempt')} in {counted(len(summary.cells), 'cell')}"
    if all(isinstance(machine.hardware, StatedHardware) for machine in summary.machines):
        return f"{cells}, imported {summary.started_at or UNKNOWN}"
    return f"{cells}, {duration(summary.wall_s)} in total, started {summary.started_at or UNKNOWN}"
