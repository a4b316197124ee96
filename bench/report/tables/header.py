"""What a reader must know before the numbers, and how they were measured, as plain lines."""

from collections.abc import Callable, Mapping

from pydantic import JsonValue

from bench.records.cell import Measure
from bench.records.machine import Hardware, Machine, StatedHardware
from bench.report.rows import P95_NEEDS, Summary
from bench.report.tables.attempts import caption, cell_name, one_line, setting
from bench.units import UNKNOWN, counted, duration, gib


def header(summary: Summary) -> list[tuple[str, str]]:
    """Pairs of a name and its value. Where machines differ, every value is listed."""
    measuring = {key: value for key, value in summary.shared.items() if key in Measure.model_fields}
    shared = {key: value for key, value in summary.shared.items() if key not in measuring}
    return [
        ("Hardware", _of_machines(summary, _hardware)),
        ("Versions", _of_machines(summary, _versions)),
        ("Settings of the machine", _of_machines(summary, _environment)),
        ("Commit", _of_machines(summary, _commit)),
        ("Same for all", _settings(shared)),
        ("Measuring", _settings(measuring)),
        ("Run", _run(summary)),
    ]


def method(summary: Summary) -> list[str]:
    """How it was measured, in six lines."""
    ways = {
        "fork": "a fresh fork of a rank server that has imported everything and never touched the device",
        "launch": "an accelerate launch of its own",
    }
    sources = dict.fromkeys(
        one_line(row.measured.source) for row in summary.rows if row.measured and row.measured.source
    )
    imported = [f"Imported, means without samples, measured elsewhere and otherwise: {source}." for source in sources]
    if imported and not summary.isolations:
        return imported
    isolation = " or ".join(ways[way] for way in summary.isolations) or "none has run"
    return [
        *imported,
        f"Every attempt ran in processes of its own: {isolation}.",
        "Warm-up steps are not counted. Steps of the throughput window have no synchronisation inside.",
        "samples/s = batch per rank x ranks / mean step of the slowest rank in that window.",
        "Memory peaks are reset after warm-up and read after the throughput window, on every rank. GiB is 2^30 bytes.",
        "Phases come from separate steps, synchronised at every boundary, of the rank that is slowest there;"
        f" p95 = sorted[int(0.95 * (n - 1))], of n = {P95_NEEDS} or more.",
        "All backends see the same seeded weights and samples; losses are means over ranks.",
    ]


def files(summary: Summary) -> list[tuple[str, str]]:
    """Each cell in words, and its folder below the run's."""
    return [(cell_name(summary, cell.rows[0]), f"attempts/{cell.cell.slug}/") for cell in summary.cells]


def _settings(settings: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"{caption(key)} {setting(key, value)}" for key, value in settings.items()) or UNKNOWN


def _of_machines(summary: Summary, words: Callable[[Machine], str]) -> str:
    return " / ".join(dict.fromkeys(one_line(words(machine)) for machine in summary.machines)) or UNKNOWN


def _hardware(machine: Machine) -> str:
    hardware = machine.hardware
    host = [machine.cpu, f"{hardware.cores} cores" if isinstance(hardware, Hardware) else None]
    memory = f"{gib(hardware.memory_bytes)} GiB" if hardware.memory_bytes is not None else "memory n/a"
    if hardware.device == "cpu":
        parts = [_joined(*host, memory), machine.system]
    else:
        models = {model: machine.accelerators.count(model) for model in machine.accelerators}
        gpus = [f"{count} x {model}" for model, count in models.items()] or [f"{hardware.devices} GPUs"]
        each = " each" if hardware.memory_bytes is not None else ""
        parts = [_joined(*gpus, memory + each), _joined(*host), machine.system]
    return "; ".join(part for part in parts if part)


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _versions(machine: Machine) -> str:
    versions = {"bench": machine.bench, "python": machine.python, **machine.libraries, "driver": machine.driver}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None) or UNKNOWN


def _environment(machine: Machine) -> str:
    settings = dict(machine.threads)
    if isinstance(machine.hardware, StatedHardware) and machine.allocator is None:
        return UNKNOWN
    if machine.hardware.device == "cuda":
        settings = {"CUDA allocator": machine.allocator or "default", **settings}
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "none set"


def _commit(machine: Machine) -> str:
    if machine.git_commit is None:
        return UNKNOWN
    state = {None: " (clean or not: n/a)", True: " (dirty: with changes that were not committed)", False: " (clean)"}
    return machine.git_commit + state[machine.git_dirty]


def _run(summary: Summary) -> str:
    cells = f"{counted(summary.n_attempts, 'attempt')} in {counted(len(summary.cells), 'cell')}"
    if all(isinstance(machine.hardware, StatedHardware) for machine in summary.machines):
        return f"{cells}, imported {summary.started_at or UNKNOWN}"
    return f"{cells}, {duration(summary.wall_s)} in all, from {summary.started_at or UNKNOWN}"
