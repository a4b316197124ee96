"""The order of a sweep's attempts. Launches of different cells take turns, so that a machine that becomes slower, or
faster, does so for all of them. Pure.

The order is drawn from `measure.seed` and the number of the round: a run that is resumed draws the same one.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from bench.records.plan import CellPlan

Item = TypeVar("Item")


def first_round(plans: Sequence[CellPlan], seed: int) -> list[tuple[CellPlan, int | None]]:
    """The first launch of every batch, None for a search: in the matrix's order, or with the cells in a drawn order if
    launches repeat.

    The batches of a cell stay in ascending order, because one that runs out of memory ends the larger ones. Searches
    keep the matrix's order: each begins where the one before it ended.
    """
    cells = [number for number, plan in enumerate(plans) for _ in plan.batch_axis]
    if any(plan.launches > 1 for plan in plans) and not any(plan.search for plan in plans):
        cells = shuffled(cells, seed, 1)
    batches = [iter((*plan.batches, None)) for plan in plans]
    return [(plans[number], next(batches[number])) for number in cells]


def shuffled(items: Sequence[Item], seed: int, number: int) -> list[Item]:
    """``items`` in the order of round ``number``."""
    return random.Random(f"{seed} {number}").sample(items, len(items))  # noqa: S311
