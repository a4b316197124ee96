"""What an exact max costs in attempts, on 400 fixed curves: bench's search against doubling and bisection.

Curves: capacity 80, static part 10 to 70, slope 0.05 to 10, quadratic part up to 0.2 % of the slope. The scouting
attempt counts as one, so the floor is three: the scout, max, and max + 1. Noise is drawn anew for every peak that is
read; a fresh attempt fits when its own noisy peak is within capacity, so with noise every answer that its own two fresh
attempts certify is right. A plan is off by a share that is drawn for each curve.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import mean
from typing import NamedTuple

from bench.records.verdict import Goal
from bench.search import Line, Observation, Prior, Scout, Try, next_step

CAPACITY, SCALE, CAP, CURVES = 80, 10**9, 4096, 400
Attempt = Callable[[int], float | None]
"""Batch to peak; None when it does not fit."""


class Curve(NamedTuple):
    static: float
    slope: float
    bend: float

    def peak(self, batch: int) -> float:
        return self.static + self.slope * batch + self.bend * batch**2

    @property
    def most(self) -> int:
        return next(batch for batch in range(CAP) if self.peak(batch + 1) > CAPACITY)


def curves(log_uniform: bool) -> Iterator[Curve]:
    dice = random.Random(20240)
    for _ in range(CURVES):
        slope = math.exp(dice.uniform(math.log(0.05), math.log(10))) if log_uniform else dice.uniform(0.05, 10)
        yield Curve(dice.uniform(10, 70), slope, dice.uniform(0, 0.002) * slope)


def attempts_of(curve: Curve, noise: float, dice: random.Random) -> Attempt:
    def attempt(batch: int) -> float | None:
        peak = curve.peak(batch) * (1 + dice.uniform(-noise, noise))
        return peak if peak <= CAPACITY else None

    return attempt


def plan_of(curve: Curve, off: float) -> Prior:
    """A straight line through the curve's peaks at batch 0 and at max, as far off as ``off`` says."""
    slope = curve.slope + curve.bend * curve.most
    return Prior((Line(curve.static * (1 + off) / CAPACITY, slope * (1 + off) / CAPACITY),))


def ours(attempt: Attempt, prior: Prior | None = None) -> tuple[int, int]:
    """Max, and the attempts made for it: those for best and safe come later and are not counted."""
    goal, seen, count = Goal(max_batch=CAP, tolerance=0), list[Observation](), 0
    while not (bracket := certified(seen)):
        step, count = next_step(seen, goal, prior=prior), count + 1
        assert isinstance(step, Scout | Try)
        fresh = isinstance(step, Try)
        for batch in (step.batch,) if isinstance(step, Try) else step.batches:
            seen.append(observation(batch, attempt(batch), fresh))
            if seen[-1].outcome == "oom":
                break
    return bracket, count


def certified(seen: list[Observation]) -> int | None:
    fitted = {o.batch for o in seen if o.fresh and o.outcome == "ok"}
    failed = {o.batch for o in seen if o.fresh and o.outcome == "oom"}
    return next((batch for batch in fitted if batch + 1 in failed), None)


def observation(batch: int, peak: float | None, fresh: bool) -> Observation:
    return Observation(
        batch=batch,
        outcome="oom" if peak is None else "ok",
        fresh=fresh,
        peak_bytes=None if peak is None else round(peak * SCALE),
        capacity_bytes=CAPACITY * SCALE,
        samples_per_s=None,
    )


def doubling_and_bisection(attempt: Attempt) -> tuple[int, int]:
    fits, fails, count = 0, 1, 1
    while attempt(fails) is not None:
        fits, fails, count = fails, 2 * fails, count + 1
    while fails - fits > 1:
        middle, count = (fits + fails) // 2, count + 1
        fits, fails = (fits, middle) if attempt(middle) is None else (middle, fails)
    return fits, count


def main() -> None:
    for log_uniform in (False, True):
        drawn = list(curves(log_uniform))
        print(f"{CURVES} curves, slopes {'log-' * log_uniform}uniform, max {min(c.most for c in drawn)}"
              f" to {max(c.most for c in drawn)}")  # fmt: skip
        for noise, target in ((0.0, 3.2), (0.002, 4.0), (0.005, None)):
            dice = random.Random(1)
            found = [(curve, *ours(attempts_of(curve, noise, dice))) for curve in drawn]
            naive = [doubling_and_bisection(attempts_of(curve, noise, dice))[1] for curve in drawn]
            assert noise or all(most == curve.most for curve, most, _ in found)
            counts = [count for _, _, count in found]
            spread = ", ".join(f"{n}: {times}" for n, times in sorted(Counter(counts).items()))
            wanted = f" (target {target:g})" if target else ""
            print(f"  noise ±{noise:.1%}: {mean(counts):.2f} attempts{wanted}, floor 3; doubling and bisection "
                  f"{mean(naive):.2f}; curves by attempts {spread}")  # fmt: skip
            for most_off in (0.03, 0.1, 0.3):
                dice = random.Random(1)
                planned = [
                    (c, plan_of(c, dice.uniform(-most_off, most_off)), attempts_of(c, noise, dice)) for c in drawn
                ]
                begun = [(curve, *ours(attempt, prior)) for curve, prior, attempt in planned]
                assert noise or all(most == curve.most for curve, most, _ in begun)
                print(f"    with a plan that is off by up to {most_off:.0%}: {mean(count for _, _, count in begun):.2f}"
                      " attempts")  # fmt: skip
            worst = sorted(found, key=lambda row: -row[2])[:3] if max(counts) > 3 else []
            for curve, most, count in worst:
                blurred = 2 * noise * CAPACITY / (curve.slope + 2 * curve.bend * most)
                print(f"    {count} attempts: static {curve.static:.1f}, slope {curve.slope:.3f}, max {curve.most}: "
                      f"the noise decides over {blurred:.1f} neighboring batches")  # fmt: skip


if __name__ == "__main__":
    main()
