"""The checks of `make gpu`: the machine that they run on, and their report, with a line for each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench import machine
from bench.records.machine import Machine

ANYWHERE = "BENCH_GPU_CHECKS_ANYWHERE"
"""Set it to run the checks without a GPU too, as far as they go: for work on the checks. No report is then written."""
HARDWARE = machine.detect()


class Line(NamedTuple):
    """A check: what it says if it passed, and what it found."""

    check: str
    outcome: str
    figures: Mapping[str, str]
    took_s: float


def page(on: Machine, lines: Sequence[Line]) -> str:
    """Markdown. The machine has no names of hosts or users."""
    libraries = ", ".join(f"{name} {version}" for name, version in on.libraries.items())
    counts = {
        outcome: sum(line.outcome == outcome for line in lines) for outcome in sorted({one.outcome for one in lines})
    }
    return "\n".join(
        [
            f"# Checks on {len(on.accelerators)} × {next(iter(on.accelerators), 'no GPU')}",
            "",
            f"`make gpu` at commit {on.git_commit or 'unknown'}{' with changes' if on.git_dirty else ''}: "
            + ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
            + f". Driver {on.driver or 'unknown'}, Python {on.python}, {libraries}.",
            "",
            "| check | outcome | found | s |",
            "| --- | --- | --- | ---: |",
            *(
                f"| {line.check} | {line.outcome} | {_figures(line.figures)} | {line.took_s:.0f} |".replace("  ", " ")
                for line in lines
            ),
            "",
        ]
    )


def _figures(figures: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}".replace("|", "\\|").replace("\n", " ") for name, value in figures.items())
