"""How well `bench run --best` finds the fastest setting, on simulated grids whose truth is known.

python tests/perf/best_trials.py [--grids 200] [--table FILE]
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))

from grids import RUN_SD, Grid, planned, searched, structured, unstructured

HELD_OUT = 40_000
"""The first seed. Nothing of the search was chosen by grids from here on: seeds below 10,000 are for that. Those from
10,000, 20,000 and 30,000 on showed that earlier rules miss too often, or need more attempts."""


class Trial(NamedTuple):
    settings: int
    attempts: int
    gap: float
    """By which share the true best is faster than the answer."""
    within: float
    """What the certificate says of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=int, default=200, help="with structure; a tenth as many without")
    parser.add_argument("--table", type=Path, help="Markdown file to write, such as reports/best_trials.md.")
    arguments = parser.parse_args()
    every = trials(structured, arguments.grids)
    groups = {
        "structured, all": every,
        "structured, 48 to 99 settings": [one for one in every if one.settings < 100],
        "structured, 100 to 400 settings": [one for one in every if one.settings >= 100],
        "structured, with a plan": trials(planned, max(arguments.grids // 10, 1)),
        "unstructured": trials(unstructured, max(arguments.grids // 10, 1)),
    }
    text = table(groups)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)


def trials(make: Callable[[int], Grid], number: int) -> list[Trial]:
    found = []
    for seed in range(HELD_OUT, HELD_OUT + number):
        grid = make(seed)
        outcome = searched(grid, seed)
        [answer] = outcome.done.answers
        found.append(Trial(len(grid.arms), len(outcome.looks), grid.gap(answer.arm), answer.within))
        print(f"{make.__name__} {seed}: {found[-1]}", flush=True)
    return found


def table(groups: Mapping[str, Sequence[Trial]]) -> str:
    lines = [
        "# Does --best find the fastest setting?",
        "",
        "Made by `make perf-best` (tests/perf/best_trials.py, tests/search/grids.py) on simulated grids. With"
        " structure, three to six axes multiply the throughput; each pair of values changes it by 2 %, each setting by"
        f" another 1 % (standard deviations). Launches vary by {RUN_SD:.0%}. With a plan, estimates that are off by"
        " 20 % for the values of two axes, and by 10 % for each setting, choose first looks. Without structure, every"
        f" setting has a throughput of its own. Seeds begin at {HELD_OUT}: nothing of the search was chosen by these"
        " grids.",
        "",
        "| grids | number | within 2 % of the true best | certificate held | certified within 2 %"
        " | attempts of all, of those of the grids | grids with at most 25 % | median certificate |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row(name, group) for name, group in groups.items() if group),
    ]
    return "\n".join(lines) + "\n"


def row(name: str, group: Sequence[Trial]) -> str:
    def share(values: Sequence[bool]) -> str:
        return f"{statistics.fmean(values):.1%}"

    cells = [
        name,
        str(len(group)),
        share([one.gap <= 0.02 for one in group]),
        share([one.gap <= one.within for one in group]),
        share([one.within <= 0.02 for one in group]),
        f"{sum(one.attempts for one in group) / sum(one.settings for one in group):.1%}",
        share([one.attempts <= 0.25 * one.settings for one in group]),
        f"{statistics.median(one.within for one in group):.1%}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
