"""The fastest setting of a grid, without measuring all of it: looks in, the next look or a certificate out. Pure.

*Model.* The logarithm of a setting's throughput is a sum: a value for each axis (backends differ by a factor that is
nearly the same at every other setting), a smaller one for each pair of values, a remainder of this setting alone, and
what a launch adds. All are normal with unknown standard deviations: a grid of candidates for these is weighed by how
well it explains what was seen (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 5), so
that on a grid without structure the remainder becomes large, and nothing is concluded from other settings. A short look
is slower than a full launch by a share that all have in common, and scatters more.

*What is ruled out.* A setting is out if the hardware allows it less than the leader has. Of the settings with
full launches, the leader is the one of which the model expects most: a lucky launch counts less where settings with
the same values were slower. Of every other setting, the model gives the chance that it is faster by more than
a margin. The certificate names the smallest margin at which these chances sum to at most 5 % (a union bound, so it
holds for all settings together).

*What comes next.* First a few settings that show every value of every axis. Then always the setting with the largest
expected improvement over the leader (Jones, Schonlau and Welch, Efficient global optimization, 1998): a full launch, in
turns with the leader. A short one says less for nearly the same time, except for a setting whose first full launch is a
search: that has a short look first, unless it is likely to win. It ends when the margin is certified, or one that is
`ENOUGH_AFTER` for what was spent. It also ends when nothing unmeasured may beat the leader by more, and the full
launches of the finalists are spent.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

CONFIDENCE = 0.95
SHARE = 0.2
"""Of the attempts of the whole grid, after which finalists are launched less often."""
ENOUGH_AFTER = {SHARE: 0.035, 0.25: 0.1}
"""By share of the attempts of the whole grid: the margin that is enough once it is spent."""
LEAST = 4.0
"""Standard deviations of a launch: less than that cannot be certified of some fifty settings by a launch of each. Once
the last share is spent, so much is enough."""
FEW = 10
"""Attempts that are not too many for any grid."""
LIKELY = 0.05
"""Chance to win from which a batch is searched at once."""
MOST_LAUNCHES = 8
"""Of one finalist, while the share is not spent."""
LEADER_LAUNCHES = 3
"""Of the leader, at least; and of what may beat it, at most, once the first share is spent."""
LEAST_LAUNCHES = 2
"""Of the leader, once the last share is spent."""
PESSIMISTIC = 0.85
"""A launch is at most this much slower than another one of the same setting: what a bound has to stay below."""
NEGLIGIBLE = 1e-4
"""Weight, relative to the best candidate, below which a candidate of the standard deviations is left out."""

_AXIS = 0.4
"""Standard deviation of the value of an axis: backends of one grid often differ by a factor of 1.5 to 3."""
_NO_PATTERN = ((0.05, 0.04, 0.1), (0.05, 0.04, 0.3))
"""Of an axis, a pair and the rest: a grid whose axes say nothing."""
_PAIRS = (0.01, 0.04, 0.12)
_RESTS = (0.005, 0.03, 0.1, 0.3)
"""Others that expect more structure need fewer attempts, and their certificates fail more often on large grids."""
_LAUNCHES = {0.015: 0.2, 0.03: 0.4, 0.06: 0.27, 0.12: 0.09, 0.25: 0.03, 0.5: 0.01}
"""Standard deviation between launches, and how likely it is before anything was measured: see `launches.ASSUMED`."""
_SHORTS = (0.02, 0.07)
_SEARCHES = (0.1, 0.3)
_SHORT_OFF = 0.1
_SEARCH_OFF = 0.7

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A setting that may be the fastest: a cell at a batch, or with the batch that a search finds."""

    levels: Mapping[str, str]
    """Its value of each axis."""
    task: str = ""
    """The requirements that it meets; each task has its own answer."""
    search: bool = False
    """Whether its first full launch is a search for its batch. A short look is then at a small batch, and far off."""
    expected: float | None = None
    """What a plan expects of its throughput, in any unit. It decides between first looks, and nothing else."""
    at_most: float = math.inf
    """Samples per second that the hardware allows."""


class Look(NamedTuple):
    """A measured throughput of an arm."""

    arm: int
    """Its index."""
    rate: float
    """Samples per second over all ranks."""
    full: bool


class Next(NamedTuple):
    """What to measure."""

    arm: int
    full: bool
    why: str
    open: int
    """Arms that may still beat their leaders by more than the margin."""


class Answer(NamedTuple):
    """The fastest arm of a task, and how sure that is."""

    task: str
    arm: int
    within: float
    """No arm of the task is faster by more than this share, with `CONFIDENCE`."""
    chances: Mapping[int, float]
    """Of every other arm of the task that is not out: that it is faster by more than the margin that is enough."""

    @property
    def open(self) -> list[int]:
        """Arms that may still be faster, where their chances are too large together."""
        if sum(self.chances.values()) <= 1 - CONFIDENCE:
            return []
        return [arm for arm, chance in self.chances.items() if chance > (1 - CONFIDENCE) / len(self.chances)]


class Done(NamedTuple):
    """Nothing is left to measure."""

    answers: tuple[Answer, ...]
    """Of the tasks with a full launch."""
    certified: bool
    """Whether every answer is within the margin that is enough."""


def next_look(
    arms: Sequence[Arm],
    looks: Sequence[Look],
    out: frozenset[int] = frozenset(),
    margin: float = 0.02,
    *,
    frugal: bool = True,
    stop: bool = False,
) -> Next | Done:
    """What to measure next. It depends on the arguments alone, so an interrupted run resumes from what is stored.

    Args:
        looks: in any order.
        out: arms that cannot be the answer: they failed, do not fit, or hold too much memory. Their looks count.
        margin: share by which another setting may be faster than the answer.
        frugal: take the margins of `ENOUGH_AFTER` where more would cost too much.
        stop: name the answers now.
    """
    out |= beaten(arms, looks, out)
    if not stop and (arm := _first(arms, looks, out)) is not None:
        return Next(arm, True, "a first look at each value of the axes", len(arms) - len(out))
    full = {n: [look.rate for look in looks if look.arm == n and look.full] for n in range(len(arms))}
    short = {look.arm for look in looks if not look.full}
    if not looks:
        return Done((), certified=False)
    belief = Belief(arms, looks)
    whole = max(len(arms), FEW / SHARE)
    spent = [share for share in ENOUGH_AFTER if frugal and len(looks) >= math.floor(share * whole)]
    most = LEADER_LAUNCHES if spent else MOST_LAUNCHES
    wanted = max([margin, *(ENOUGH_AFTER[share] for share in spent)])
    if all_spent := len(spent) == len(ENOUGH_AFTER):
        wanted = max(wanted, LEAST * belief.launch_sd)
    answers, steps, n_open = [], list[tuple[float, int, bool]](), 0
    for task in dict.fromkeys(arm.task for arm in arms):
        alive = [n for n, arm in enumerate(arms) if arm.task == task and n not in out]
        if not alive:
            continue
        measured = [n for n in alive if full[n]]
        if not measured:
            likely = max(alive, key=lambda n: belief.mean[n])
            steps.append((1.0, likely, True))
            n_open += len(alive)
            continue
        leader = max(measured, key=lambda n: belief.mean[n])  # a lucky launch does not lead
        others = [n for n in alive if n != leader]
        chances = dict(zip(others, belief.beats(others, leader, wanted), strict=True))
        answers.append(Answer(task, leader, belief.within(others, leader), chances))
        if others and len(full[leader]) < (LEAST_LAUNCHES if all_spent else LEADER_LAUNCHES):
            steps.append((0.0, leader, True))  # a single launch may be a lucky one
        if sum(chances.values()) <= 1 - CONFIDENCE:
            continue
        n_open += sum(chance > (1 - CONFIDENCE) / len(others) for chance in chances.values())
        by_gain = sorted(zip(belief.gains(others, leader), others, strict=True), reverse=True)
        if challenge := _challenge(arms, leader, {arm: chances[arm] for _, arm in by_gain}, full, short, most):
            steps.append(challenge)
    if steps and not stop:
        _, arm, is_full = max(steps)
        what = "a first launch of the most promising one" if not full[arm] else "launching again what decides"
        return Next(arm, is_full, what, n_open)
    certified = bool(answers) and all(sum(answer.chances.values()) <= 1 - CONFIDENCE for answer in answers)
    return Done(tuple(answers), certified=certified)


def beaten(arms: Sequence[Arm], looks: Sequence[Look], out: Collection[int] = ()) -> frozenset[int]:
    """The arms that cannot be as fast as what was launched in full of their task, by what the hardware allows.

    Those that are ``out`` cannot be the answer, and so rule out no others.
    """
    fastest: dict[str, float] = {}
    for look in looks:
        if look.full and look.arm not in out:
            task = arms[look.arm].task
            fastest[task] = max(fastest.get(task, 0.0), look.rate)
    slowest = {task: PESSIMISTIC * rate for task, rate in fastest.items()}
    left = frozenset(range(len(arms))) - {look.arm for look in looks if look.full}
    return frozenset(n for n in left if arms[n].at_most < slowest.get(arms[n].task, 0.0))


def _first(arms: Sequence[Arm], looks: Sequence[Look], out: frozenset[int]) -> int | None:
    """The next arm of the first looks: while a value of an axis was never seen, the one with most unseen values, and
    of these the one of which a plan expects most."""
    tried = {look.arm for look in looks} | out
    seen = {item for n in tried for item in arms[n].levels.items()}
    left = [n for n in range(len(arms)) if n not in tried]
    unseen = {n: sum(item not in seen for item in arms[n].levels.items()) for n in left}
    best = max(left, key=lambda n: (unseen[n], arms[n].expected or 0.0, -n), default=None)
    return best if best is not None and (unseen[best] or not looks) else None


def _challenge(
    arms: Sequence[Arm],
    leader: int,
    chances: Mapping[int, float],
    full: Mapping[int, Sequence[float]],
    short: set[int],
    most: int,
) -> tuple[float, int, bool] | None:
    """What to measure against the leader: the first challenger that is not measured enough, or the leader. With the
    chance of the challenger, and whether to launch in full.

    Args:
        chances: of the challengers, the most promising first.
    """
    for arm, chance in chances.items():
        if chance <= (1 - CONFIDENCE) / (2 * len(chances)):
            continue
        if not full[arm]:
            return chance, arm, arm in short or chance >= LIKELY or not arms[arm].search
        turn = leader if len(full[leader]) <= len(full[arm]) else arm
        if len(full[turn]) < most:
            return chance, turn, True
    return None


class Belief:
    """What the looks say of all arms: a mixture of normal distributions of the logarithms of their rates."""

    def __init__(self, arms: Sequence[Arm], looks: Sequence[Look]) -> None:
        at = np.array([look.arm for look in looks])
        same, pairs = _alike(arms)
        short = np.array([not look.full for look in looks])
        searched = np.array([arms[look.arm].search for look in looks])
        logs = np.log([look.rate for look in looks])
        logs -= (middle := float(np.mean(logs)))
        off = np.outer(short, short) * np.where(np.outer(searched, searched), _SEARCH_OFF**2, _SHORT_OFF**2)
        extras = _SEARCHES if bool(np.any(short & searched)) else _SHORTS
        fits: list[float] = []
        varies: list[float] = []
        found: list[tuple[Array, Array, Array]] = []
        for axis, pair, rest in (*product((_AXIS,), _PAIRS, _RESTS), *_NO_PATTERN):
            prior = 1.0 + axis**2 * same + pair**2 * pairs + rest**2 * np.eye(len(arms))
            seen = prior[np.ix_(at, at)] + off
            for launch, extra in product(_LAUNCHES, extras if bool(np.any(short)) else extras[:1]):
                root = np.linalg.cholesky(seen + np.diag(launch**2 + extra**2 * short))
                whitened = np.linalg.solve(root, logs)
                explains = -0.5 * float(whitened @ whitened) - float(np.sum(np.log(np.diag(root))))
                fits.append(explains + math.log(_LAUNCHES[launch]))
                varies.append(launch)
                found.append((root, whitened, prior))
        likely = [n for n, fit in enumerate(fits) if fit > max(fits) + math.log(NEGLIGIBLE)]
        weights = np.exp(np.array([fits[n] - max(fits) for n in likely]))
        self._weights: Array = weights / weights.sum()
        self.launch_sd = sum(float(weight) * varies[n] for weight, n in zip(self._weights, likely, strict=True))
        """How much launches of one setting differ, as a share."""
        self._priors = [found[n][2] for n in likely]
        self._halves: list[Array] = [np.linalg.solve(found[n][0], found[n][2][at]) for n in likely]
        """What a look at each arm would share with the looks: the prior covariance less its square is the posterior."""
        self._means: list[Array] = [half.T @ found[n][1] + middle for half, n in zip(self._halves, likely, strict=True)]

    @cached_property
    def mean(self) -> Array:
        """Of each arm."""
        return np.asarray(
            np.sum([weight * mean for weight, mean in zip(self._weights, self._means, strict=True)], axis=0)
        )

    def beats(self, arms: Sequence[int], leader: int, margin: float) -> list[float]:
        """The chance of each of ``arms`` to be faster than ``leader`` by more than ``margin``."""
        return [float(chance) for chance in self._chances(self._gaps(arms, leader), margin)]

    def gains(self, arms: Sequence[int], leader: int) -> list[float]:
        """The expected improvement of each of ``arms`` over ``leader``, of the logarithm of the rate."""
        total = np.zeros(len(arms))
        for weight, (ahead, sd) in zip(self._weights, self._gaps(arms, leader), strict=True):
            z = ahead / sd
            total += weight * (ahead * ndtr(z) + sd * np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        return [float(gain) for gain in total]

    def within(self, arms: Sequence[int], leader: int) -> float:
        """The smallest margin that no arm exceeds with `CONFIDENCE`."""
        if not arms:
            return 0.0
        gaps, low, high = self._gaps(arms, leader), 0.0, 1.0
        while self._chances(gaps, high).sum() > 1 - CONFIDENCE:
            low, high = high, 2 * high
        if self._chances(gaps, 0.0).sum() <= 1 - CONFIDENCE:
            return 0.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if self._chances(gaps, middle).sum() <= 1 - CONFIDENCE else (middle, high)
        return high

    def _gaps(self, arms: Sequence[int], leader: int) -> list[tuple[Array, Array]]:
        """By candidate: how far each arm is ahead of the leader, and the standard deviation of that."""
        at, gaps = np.array(arms, dtype=int), []
        for mean, half, prior in zip(self._means, self._halves, self._priors, strict=True):
            one, other = half[:, at], half[:, leader]
            variance = (
                prior[at, at]
                - np.sum(one**2, axis=0)
                + prior[leader, leader]
                - other @ other
                - 2 * (prior[at, leader] - one.T @ other)
            )
            gaps.append((mean[at] - mean[leader], np.sqrt(np.maximum(variance, 1e-10))))
        return gaps

    def _chances(self, gaps: Sequence[tuple[Array, Array]], margin: float) -> Array:
        least = math.log1p(margin)
        return np.asarray(
            sum(w * ndtr((ahead - least) / sd) for w, (ahead, sd) in zip(self._weights, gaps, strict=True))
        )


def _alike(arms: Sequence[Arm]) -> tuple[Array, Array]:
    """Of each two arms: on how many axes they agree, and on how many pairs of axes."""
    names = list(dict.fromkeys(name for arm in arms for name in arm.levels))
    same = np.zeros((len(arms), len(arms)))
    for name in names:
        values = np.array([arm.levels.get(name, "") for arm in arms])
        same += values[:, None] == values[None, :]
    return same, same * (same - 1) / 2
