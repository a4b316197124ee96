"""The checks of `make gpu`: the machine that they run on, their parts, and their report, with a line for each."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import HERE, ROOT, Bench

from bench import machine
from bench.backends import BACKENDS, FAMILIES
from bench.records.machine import Machine
from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import RankOk

REHEARSED = os.environ.get("BENCH_GPU_REHEARSAL") == "cpu"
"""Whether the checks run on the CPU, as far as they make sense there: for work on the checks."""
if REHEARSED:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
HARDWARE = machine.detect()

PARTS = ("doctor", "backends", "oom", "probe", "steps", "compile", "limits", "rest")
"""`test_<part>.py`, in the order in which they run: what tells most comes first."""

MIB, GIB = 2**20, 2**30
LIMIT_MIB = 1024
"""In a rehearsal, the limit on a rank's memory takes the place of the device's."""
TOO_MUCH_MIB = 2 * (LIMIT_MIB if REHEARSED else HARDWARE.memory_bytes // MIB)
SMALL = {"image_size": 32, "n_obs_history": 1, "num_cams": 1, "prompt_len": 8, "n_layers": 2, "vision_layers": 1}
POLICY: dict[str, Any] = {"name": "pi07", "preset": "tiny", **(SMALL if REHEARSED else {})}
"""The bundled policy; in a rehearsal, smaller."""
PATHS = os.pathsep.join(map(str, (ROOT, HERE, Path(__file__).parent)))
AVAILABLE = tuple(name for name, backend in BACKENDS.items() if find_spec(FAMILIES[backend.family].package))
"""Backends whose library is installed. The checks of the others are skipped."""


def needs_device(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(REHEARSED, reason=f"needs a device: {why}")


def run(bench: Bench, cells: Sequence[Mapping[str, Any]], name: str = "run", **content: Any) -> list[Result]:
    """Measure ``cells``, each of which may set its backend and batch. One rank, unless ``launch`` says otherwise.

    Args:
        content: of the matrix; ``environment`` is that of the command.
    """
    environment = content.pop("environment", {})
    content["launch"] = {"num_processes": 1, **content.get("launch", {})}
    include = [{"backend": "single", "batch": 2, **cell} for cell in cells]
    matrix = bench.matrix(name, matrix={}, include=include, **content)
    process = bench.start("run", matrix, "--out", str(bench.folder / name), PYTHONPATH=PATHS, **environment)
    output, _ = process.communicate(timeout=600)
    assert process.returncode in (0, 1), output
    return bench.results(name)


def first(result: Result) -> RankOk:
    """The first rank of a result that has to be ok."""
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome.ranks[0]


class Line(NamedTuple):
    """A check: what it says if it passed, and what it found."""

    part: str
    check: str
    outcome: str
    figures: str
    took_s: float
    commit: str


def figures(found: Mapping[str, str]) -> str:
    """In one cell of the table."""
    return "; ".join(f"{name}: {value}" for name, value in found.items()).replace("\n", " ")


def without_paths(text: str) -> str:
    """The text without names of folders, which may say whose machine it is."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "…/", text)


def stem(on: Machine) -> str:
    """The name of the report and of the folder beside it."""
    if not on.accelerators:
        return "rehearsal-cpu"
    return "-".join(["gpu", str(len(on.accelerators)), *on.accelerators[0].lower().split()])


_COLUMNS = "| part | check | outcome | found | s | commit |"


def page(on: Machine, lines: Sequence[Line]) -> str:
    """Markdown. The machine has no names of hosts or users."""
    libraries = ", ".join(f"{name} {version}" for name, version in on.libraries.items())
    outcomes = [line.outcome for line in lines]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes)))
    took = {part: sum(line.took_s for line in lines if line.part == part) for part in PARTS}
    times = ", ".join(f"{part} {took_s:.0f}" for part, took_s in took.items() if took_s)
    return "\n".join(
        [
            f"# Checks on {len(on.accelerators)} × {next(iter(on.accelerators), 'no GPU')}",
            "",
            f"`make gpu`: {counts}. Driver {on.driver or 'unknown'}, Python {on.python}, {libraries}.",
            f"Seconds by part: {times}.",
            "",
            _COLUMNS,
            "| --- | --- | --- | --- | ---: | --- |",
            *(_row(line) for line in lines),
            "",
        ]
    )


def _row(line: Line) -> str:
    cells = line._replace(took_s=f"{line.took_s:.0f}")  # type: ignore[arg-type]
    return "|" + "|".join(f" {cell}".replace("|", "\\|") + " " * bool(cell) for cell in map(str, cells)) + "|"


def lines_of(report: str) -> list[Line]:
    """The lines of a page; none if its table has other columns."""
    _, columns, table = report.partition(f"{_COLUMNS}\n")
    rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in table.splitlines()[1:] if columns and row]
    read = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    return [
        Line(part, check, outcome, found, float(took), commit) for part, check, outcome, found, took, commit in read
    ]


def merged(earlier: Sequence[Line], new: Line) -> list[Line]:
    """All lines in the order of PARTS; the new one replaces that of the same check."""
    kept = [new if (line.part, line.check) == (new.part, new.check) else line for line in earlier]
    return sorted(kept if new in kept else [*kept, new], key=lambda line: PARTS.index(line.part))
