"""Simulated grids for `bench.search.best`: what each setting would measure, and a run of the search over it."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

from bench.search.best import Arm, Done, Look, next_look

AXES = {"backend": 8, "batch": 5, "attention": 3, "grad_ckpt": 2, "compile": 3, "weights": 2, "fused": 2, "workers": 3}
EFFECTS = {"backend": 0.35, "batch": 0.3, "attention": 0.2, "grad_ckpt": 0.2, "compile": 0.15, "weights": 0.15}
"""Standard deviation of the logarithm of the throughput over the values of an axis; 0.03 for those not listed."""
RUN_SD, SHORT_SD = 0.03, 0.02


@dataclass(frozen=True)
class Grid:
    arms: tuple[Arm, ...]
    truth: tuple[float, ...]
    """Samples per second."""

    def gap(self, arm: int) -> float:
        """By which share the fastest arm is faster than this one."""
        return max(self.truth) / self.truth[arm] - 1


@dataclass(frozen=True)
class Outcome:
    done: Done
    looks: tuple[Look, ...]


def structured(seed: int, least: int = 48, most: int = 400, interaction: float = 0.02, rest: float = 0.01) -> Grid:
    """Each axis multiplies the throughput; pairs of values, and each setting, change it a little more."""
    draw = random.Random(seed)
    while True:
        names = draw.sample(list(AXES), draw.randint(3, 6))
        sizes = {name: draw.randint(2, AXES[name]) for name in names}
        if least <= math.prod(sizes.values()) <= most:
            break
    alone = {(name, value): draw.gauss(0, EFFECTS.get(name, 0.03)) for name in names for value in range(sizes[name])}
    pairs: dict[object, float] = {}
    settings = [dict(zip(names, values, strict=True)) for values in product(*(range(sizes[name]) for name in names))]
    logs = []
    for setting in settings:
        log = sum(alone[item] for item in setting.items()) + draw.gauss(0, rest)
        log += sum(pairs.setdefault(pair, draw.gauss(0, interaction)) for pair in combinations(setting.items(), 2))
        logs.append(log)
    return Grid(tuple(Arm(levels=words(setting)) for setting in settings), tuple(100 * math.exp(log) for log in logs))


def planned(seed: int, off: float = 0.2, rest: float = 0.1, **sizes: int) -> Grid:
    """A structured grid with a plan. Its estimates are off by a share that values of two axes have in common, and by
    another one of each setting: on CPUs, `reports/plan_cpu.md` has a median of 7 % to 28 %."""
    grid, draw = structured(seed, **sizes), random.Random(f"plan {seed}")
    names = draw.sample(sorted(grid.arms[0].levels), 2)
    alike: dict[object, float] = {}
    arms = []
    for arm, truth in zip(grid.arms, grid.truth, strict=True):
        log = sum(alike.setdefault((name, arm.levels[name]), draw.gauss(0, off)) for name in names)
        arms.append(replace(arm, expected=truth * math.exp(log + draw.gauss(0, rest))))
    return Grid(tuple(arms), grid.truth)


def unstructured(seed: int, sd: float = 0.25) -> Grid:
    """Every setting has a throughput of its own: nothing follows from others."""
    draw = random.Random(seed)
    sizes = {"backend": draw.randint(4, 6), "attention": draw.randint(2, 3), "batch": draw.randint(3, 4)}
    settings = [dict(zip(sizes, values, strict=True)) for values in product(*map(range, sizes.values()))]
    return Grid(
        tuple(Arm(levels=words(setting)) for setting in settings),
        tuple(100 * math.exp(draw.gauss(0, sd)) for _ in settings),
    )


def words(setting: Mapping[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in setting.items()}


def searched(grid: Grid, seed: int, margin: float = 0.02, run_sd: float = RUN_SD, frugal: bool = True) -> Outcome:
    """Do what the search asks for until it is done. Launches scatter; short ones are off by a few percent, too."""
    draw, looks = random.Random(f"run {seed}"), list[Look]()
    off = draw.gauss(-0.05, 0.03)
    while True:
        step = next_look(grid.arms, looks, margin=margin, frugal=frugal)
        if isinstance(step, Done):
            return Outcome(step, tuple(looks))
        log = math.log(grid.truth[step.arm]) + draw.gauss(0, run_sd)
        log += 0.0 if step.full else off + draw.gauss(0, SHORT_SD)
        looks.append(Look(step.arm, math.exp(log), step.full))
        assert len(looks) <= 20 * len(grid.arms), "it does not end"
