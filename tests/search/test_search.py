"""The max-batch search against known worlds: curves of memory and throughput, noise, lies, contradictions."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.records.rank_outcome import SampleSizes
from bench.records.verdict import Goal, OfDivisors, Verdict
from bench.search import Observation, Prior, Scout, Try, next_step

CAPACITY = 80 * 10**9
many = settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=300)


@dataclass
class World:
    """What attempts would show: shares of capacity and samples per second over the batch."""

    share: Callable[[int], float]
    rate: Callable[[int], float | None] = lambda batch: batch / (1 + 0.02 * batch)
    reserved: Callable[[int], float] | None = None
    noise: float = 0.0
    full_share: float = 0.0
    """Memory that only a full attempt needs."""
    capacity: int = CAPACITY
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def attempt(self, batch: int, *, fresh: bool, full: bool = False) -> Observation:
        peak = round(self.share(batch) * (1 + self.dice.uniform(-self.noise, self.noise)) * self.capacity)
        peak += round(full * self.full_share * self.capacity)
        fits = peak <= self.capacity
        reserved = round(self.reserved(batch) * self.capacity) if self.reserved else None
        return Observation(
            batch=batch,
            outcome="ok" if fits else "oom",
            fresh=fresh,
            peak_bytes=peak if fits else None,
            capacity_bytes=self.capacity,
            samples_per_s=self.rate(batch) if fits else None,
            reserved_bytes=reserved if fits else None,
            full=full,
        )

    def scout(self, batches: Sequence[int]) -> list[Observation]:
        walked = []
        for batch in batches:
            walked.append(self.attempt(batch, fresh=False))
            if walked[-1].outcome == "oom":
                break
        return walked


@dataclass
class Search:
    """A finished search."""

    verdict: Verdict
    observations: list[Observation]
    boundaries: list[int]
    """How many observations there were before each step."""

    @property
    def attempts(self) -> int:
        return len(self.boundaries) - 1


def search(
    world: World,
    goal: Goal,
    known: Sequence[Observation] = (),
    start: int | None = None,
    prior: Prior | None = None,
) -> Search:
    observations, boundaries = list(known), list[int]()
    while len(boundaries) < 200:
        boundaries.append(len(observations))
        step = next_step(observations, goal, start=start, prior=prior)
        match step:
            case Verdict():
                return Search(step, observations, boundaries)
            case Scout(batches=batches):
                assert list(batches) == sorted(set(batches))
                assert all(batch % goal.granularity == 0 and 1 <= batch <= goal.max_batch for batch in batches)
                observations += world.scout(batches)
            case Try(batch=batch, full=full):
                assert batch % goal.granularity == 0
                assert 1 <= batch <= goal.max_batch
                observations.append(world.attempt(batch, fresh=True, full=full))
    raise AssertionError(f"no end after {len(boundaries)} attempts: {observations}")


def check_certificate(found: Search, goal: Goal) -> None:
    """Recompute from the observations what the verdict claims."""
    verdict, top = found.verdict, goal.max_batch // goal.granularity * goal.granularity
    fitted = {o.batch for o in found.observations if o.fresh and o.outcome == "ok"}
    failed = {o.batch for o in found.observations if o.fresh and o.outcome == "oom"}
    most = verdict.max_batch_per_rank
    for batch in [most] if most else []:
        assert batch in fitted
        assert not any(other <= batch for other in failed)
    match verdict.certificate:
        case "next_fails":
            assert most + goal.granularity in failed
        case "tolerance":
            assert verdict.fails in failed
            assert most < verdict.fails <= most * (1 + goal.tolerance)
        case "cap_fits":
            assert most == top
        case "nothing_fits":
            assert most is None
            assert goal.granularity in failed
        case "contradicted":
            assert fitted
            assert goal.granularity in failed or sum(batch <= max(fitted) for batch in failed) >= 3
    for answer in (verdict.best, verdict.safe):
        if answer:
            assert answer.batch in fitted
            assert answer.batch <= most
            assert answer.batch not in verdict.thrashing
    if verdict.safe:
        assert verdict.safe.held <= goal.headroom


def attempts_bound(goal: Goal, *, logs: int = 1) -> int:
    """A bisection of the whole range, and beside it the scout, attempts that trust the fit, the curve, confirmation."""
    return 14 + math.ceil(logs * math.log2(goal.max_batch / goal.granularity + 1))


def parabola(static: float, most: int, bend: float) -> Callable[[int], float]:
    """Shares of capacity; ``most`` is the largest that fits; there the quadratic part takes ``bend`` of the room."""
    room, last = 1 - static, most + 0.5
    return lambda batch: static + room * ((1 - bend) * batch / last + bend * (batch / last) ** 2)


def stepped(share: Callable[[int], float], step: float) -> Callable[[int], float]:
    return lambda batch: math.ceil(share(batch) / step - 1e-9) * step


@st.composite
def shares(draw: st.DrawFn) -> Callable[[int], float]:
    """Linear, convex and stepped curves; nothing to 5,000 fits."""
    static = draw(st.floats(0.05, 0.95))
    most = draw(st.one_of(st.integers(0, 12), st.integers(0, 300), st.integers(0, 5000)))
    share = parabola(static, most, draw(st.sampled_from([0.0, 0.02, 0.3, 0.9])))
    step = draw(st.sampled_from([0.0, 0.0, 1e-4, 0.003, 0.04]))
    return stepped(share, step) if step else share


@st.composite
def goals(draw: st.DrawFn, *, tolerances: Sequence[float] = (0.0,)) -> Goal:
    granularity = draw(st.integers(1, 16))
    max_batch = draw(st.one_of(st.integers(granularity, 64), st.integers(granularity, 5000), st.just(8192)))
    return Goal(max_batch=max_batch, granularity=granularity, tolerance=draw(st.sampled_from(list(tolerances))))


def brute_force(world: World, goal: Goal) -> int | None:
    most = None
    for batch in range(goal.granularity, goal.max_batch + 1, goal.granularity):
        if round(world.share(batch) * world.capacity) > world.capacity:
            break
        most = batch
    return most


@many
@given(shares(), goals())
def test_exact_search_equals_brute_force(share: Callable[[int], float], goal: Goal) -> None:
    world = World(share)
    found = search(world, goal)
    assert found.verdict.max_batch_per_rank == brute_force(world, goal)
    assert found.verdict.certificate in ("next_fails", "cap_fits", "nothing_fits")
    assert found.verdict.confirmed
    assert found.attempts <= attempts_bound(goal)
    check_certificate(found, goal)


@many
@given(shares(), goals(tolerances=(0.0, 0.0, 0.03)), st.sampled_from([0.001, 0.002, 0.005]), st.integers(0, 2**32))
def test_noise_never_costs_the_certificate(share: Callable[[int], float], goal: Goal, noise: float, seed: int) -> None:
    found = search(World(share, noise=noise, dice=random.Random(seed)), goal)
    assert found.attempts <= attempts_bound(goal, logs=3)
    check_certificate(found, goal)


@st.composite
def divisor_goals(draw: st.DrawFn) -> OfDivisors:
    granularity = draw(st.sampled_from([1, 1, 1, 2, 4]))
    share = granularity * draw(st.one_of(st.integers(1, 64), st.sampled_from([256, 360, 997, 2520])))
    return OfDivisors(share=share, granularity=granularity, max_batch=draw(st.sampled_from([share, 64, 10_000])))


@many
@given(shares(), divisor_goals(), st.integers(1, 3000))
def test_a_search_among_divisors_certifies_the_largest_and_names_the_fastest(
    share: Callable[[int], float], goal: OfDivisors, peak: int
) -> None:
    """Throughput has one peak, anywhere below and above max."""
    world = World(share, rate=lambda batch: batch / (1 + (batch / peak) ** 2))
    found = search(world, goal)
    batches = [batch for batch in range(1, goal.share + 1) if goal.share % batch == 0 and goal.tries(batch)]
    assert {o.batch for o in found.observations} <= set(batches)
    fits = [batch for batch in batches if round(share(batch) * CAPACITY) <= CAPACITY]
    verdict = found.verdict
    assert verdict.max_batch_per_rank == max(fits, default=None)
    assert found.attempts <= 8 + len(batches)
    match verdict.certificate:
        case "next_fails":
            assert verdict.fails == next(batch for batch in batches if batch not in fits)
        case "cap_fits":
            assert fits == batches
        case other:
            assert (other, fits) == ("nothing_fits", [])
    if verdict.best:
        assert world.rate(verdict.best.batch) == pytest.approx(max(world.rate(batch) or 0 for batch in fits), rel=0.02)
    assert search(world, goal, found.observations).attempts == 0


@some
@given(shares(), goals(), st.data())
def test_resuming_anywhere_ends_alike(share: Callable[[int], float], goal: Goal, data: st.DataObject) -> None:
    world = World(share)
    found = search(world, goal)
    for boundary in found.boundaries:
        assert search(world, goal, found.observations[:boundary]).verdict == found.verdict
    torn = search(world, goal, found.observations[: data.draw(st.integers(0, len(found.observations)))])
    assert torn.verdict.max_batch_per_rank == found.verdict.max_batch_per_rank
    check_certificate(torn, goal)


@st.composite
def lies(draw: st.DrawFn) -> list[Observation]:
    """What no scout saw."""
    seed = random.Random(draw(st.integers(0, 2**32)))
    dense = draw(st.booleans())
    batches = range(1, seed.randint(1, 400)) if dense else [seed.randint(1, 6000) for _ in range(seed.randint(1, 20))]
    likely = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return [
        Observation(
            batch=batch,
            outcome="ok" if seed.random() < likely else "oom",
            fresh=False,
            peak_bytes=seed.choice([None, 0, seed.randint(1, 2 * CAPACITY)]),
            capacity_bytes=CAPACITY,
            samples_per_s=seed.choice([None, seed.uniform(0, 1000)]),
            reserved_bytes=seed.choice([None, seed.randint(1, CAPACITY)]),
            alloc_retries=seed.choice([0, 0, 3]),
        )
        for batch in batches
    ]


@many
@given(shares(), goals(), lies(), st.one_of(st.none(), st.integers(-3, 9000)))
def test_lying_hints_and_starts_cost_attempts_only(
    share: Callable[[int], float], goal: Goal, hints: list[Observation], start: int | None
) -> None:
    world = World(share)
    found = search(world, goal, hints, start)
    assert found.verdict.max_batch_per_rank == brute_force(world, goal)
    assert found.attempts <= attempts_bound(goal, logs=3)
    check_certificate(found, goal)


@many
@given(goals(tolerances=(0.0, 0.03)), lies(), st.integers(0, 2**32), st.floats(0, 1), st.booleans())
def test_a_world_that_contradicts_itself_ends(
    goal: Goal, hints: list[Observation], seed: int, likely: float, measured: bool
) -> None:
    dice = random.Random(seed)
    world = World(
        share=lambda batch: dice.uniform(0.05, 1) if dice.random() < likely else 1.5,
        rate=lambda batch: dice.uniform(0, 100) if measured else None,
        reserved=lambda batch: dice.uniform(0.5, 1),
    )
    found = search(world, goal, hints)
    assert found.attempts <= attempts_bound(goal, logs=4)
    check_certificate(found, goal)


@some
@given(shares(), goals(), st.floats(0.001, 0.3))
def test_what_only_full_attempts_need_is_found(share: Callable[[int], float], goal: Goal, more: float) -> None:
    """Short attempts fit where full ones do not: once that shows, only full ones count."""
    found = search(World(share, full_share=more), goal)
    assert found.attempts <= attempts_bound(goal, logs=3)
    check_certificate(found, goal)
    if best := found.verdict.best:
        assert best.confirmed
        assert share(best.batch) + more <= 1 + 1e-9


def test_a_batch_that_fitted_once_and_failed_once_is_not_reported() -> None:
    world = World(parabola(0.3, 20, 0.0))
    known = [world.attempt(16, fresh=True), world.attempt(16, fresh=True).model_copy(update={"outcome": "oom"})]
    assert search(world, Goal(max_batch=100), known).verdict.fits == 15


def test_stored_observations_are_evidence() -> None:
    world, goal = World(parabola(0.3, 20, 0.0)), Goal(max_batch=100)
    known = [world.attempt(batch, fresh=True, full=True) for batch in (4, 8, 12, 20, 21)]
    found = search(world, goal, known)
    assert found.verdict.fits == 20
    assert not any(not o.fresh for o in found.observations)
    assert found.attempts <= 2


def test_three_attempts_are_enough_for_max_on_a_plain_curve() -> None:
    found = search(World(parabola(0.3, 777, 0.2)), Goal(max_batch=5000, tolerance=0))
    steps = [found.observations[boundary] for boundary in found.boundaries[:-1]]
    assert [(o.batch, o.fresh) for o in steps[:3]] == [(1, False), (777, True), (778, True)]


@pytest.mark.parametrize("seed", range(5))
def test_a_large_max_is_known_within_one_percent_and_noise_costs_little(seed: int) -> None:
    world = World(parabola(0.05, 13_500, 0.0), noise=0.005, dice=random.Random(seed))
    found = search(world, Goal())
    check_certificate(found, Goal())
    assert found.verdict.certificate in ("tolerance", "next_fails")
    assert sum(o.fresh and not o.full for o in found.observations) <= 6
    small = search(World(parabola(0.3, 199, 0.0)), Goal()).verdict
    assert (small.certificate, small.fits, small.fails) == ("next_fails", 199, 200)


def test_many_attempts_near_the_ceiling_leave_enough_for_safe() -> None:
    world = World(parabola(0.2, 130, 0.0), rate=lambda batch: 6.0 * batch)
    known = [
        world.attempt(batch, fresh=True, full=batch in (8, 128))
        for batch in (8, 119, 121, 123, 125, 127, 128, 130, 131)
    ]
    verdict = search(world, Goal(), known).verdict
    assert 100 <= verdict.safe.batch <= 114  # 90 % of the capacity


@pytest.mark.parametrize("leak", [0.9, 1.1, 1.3])
def test_a_scout_whose_memory_is_off_is_left_for_evidence(leak: float) -> None:
    share = parabola(0.3, 200, 0.1)
    hints = World(lambda batch: leak * share(batch)).scout([1 << i for i in range(13)])
    found = search(World(share), Goal(max_batch=5000, tolerance=0), hints)
    assert found.verdict.max_batch_per_rank == 200
    assert sum(o.fresh and not o.full for o in found.observations) <= 12


def test_another_cells_answer_only_adds_to_the_walk() -> None:
    step = next_step([], Goal(max_batch=64), start=23)
    assert step.batches == (1, 2, 4, 8, 16, 23, 32, 64)


def test_tolerance_stops_early_and_says_so() -> None:
    world = World(parabola(0.3, 1000, 0.3), noise=0.005)
    found = search(world, Goal(max_batch=5000, tolerance=0.03))
    assert found.verdict.certificate in ("tolerance", "next_fails")
    assert "tolerance" in found.verdict.why
    assert found.verdict.max_batch_per_rank == pytest.approx(1000, rel=0.03)


def test_nothing_fits_costs_two_attempts() -> None:
    found = search(World(lambda batch: 1.2), Goal(max_batch=5000, granularity=4))
    assert (found.verdict.max_batch_per_rank, found.verdict.certificate, found.attempts) == (None, "nothing_fits", 2)
    assert (found.verdict.best, found.verdict.safe) == (None, None)
    assert found.verdict.why == "not even 4 fits; a smaller batch may, with a smaller granularity"


def test_memory_that_shrinks_as_the_batch_grows_is_no_proof_that_nothing_fits() -> None:
    """Seen on a CPU with samples of many lengths at a global batch: many small micro-batches held more than few."""
    world = World(lambda batch: 1.2 if batch == 1 else 0.5)
    found = search(world, Goal(max_batch=8), [world.attempt(batch, fresh=True, full=True) for batch in (4, 1)])
    assert (found.verdict.max_batch_per_rank, found.verdict.certificate, found.attempts) == (None, "contradicted", 0)
    assert found.verdict.why.startswith("1 does not fit, and 4 does: memory does not grow with the batch")


GB = 10**9
FSDP_4_CAMS = {1: (31.6, 49.0, 2.0), 4: (39.33, 61.30, 6.2), 8: (49.68, 77.90, 7.0), 10: (54.85, 83.86, 6.2)}
FSDP_4_CAMS |= {12: (61.02, 83.59, 4.9)}
FSDP_1_CAM = {1: (30.9, 56.3, 3.0), 8: (43.86, 70.14, 16.3), 12: (51.29, 78.07, 16.5)}
ZERO2_1_CAM = {1: (27.4, 27.6, 2.5), 8: (36.22, 36.45, 14.5), 16: (46.25, 46.74, 20.1), 24: (56.31, 57.04, 23.6)}


def published(rows: dict[int, tuple[float, float, float]], most: int) -> World:
    """GB allocated, GB reserved, samples/s of the published 8xA100 matrix; straight lines between, batch 1 made up."""

    def column(index: int) -> Callable[[int], float]:
        def value(batch: int) -> float:
            for (left, low), (right, high) in pairwise(sorted(rows.items())):
                if batch <= right:
                    return low[index] + (high[index] - low[index]) * (batch - left) / (right - left)
            return rows[max(rows)][index]

        return value

    allocated, reserved, rate = column(0), column(1), column(2)
    return World(
        lambda batch: allocated(batch) / 85.9 if batch <= most else 1.1,
        rate,
        reserved=lambda batch: reserved(batch) / 85.9,
        capacity=round(85.9 * GB),
    )


def test_thrashing_batches_fit_and_are_not_recommended() -> None:
    found = search(published(FSDP_4_CAMS, 12), Goal(max_batch=256))
    verdict = found.verdict
    assert (verdict.max_batch_per_rank, verdict.certificate) == (12, "next_fails")
    assert (verdict.best.batch, verdict.best.samples_per_s, verdict.best.confirmed) == (8, 7.0, True)
    assert {10, 12} <= set(verdict.thrashing)
    assert verdict.safe.batch == 7  # batch 8 holds 91 %
    assert verdict.points >= 4
    check_certificate(found, Goal(max_batch=256))


def test_allocation_retries_are_thrashing() -> None:
    world, goal = published(ZERO2_1_CAM, 24), Goal(max_batch=24)
    retried = world.attempt(24, fresh=True, full=True).model_copy(update={"alloc_retries": 2})
    verdict = search(world, goal, [retried]).verdict
    assert (verdict.max_batch_per_rank, verdict.thrashing) == (24, (24,))
    assert 12 <= verdict.best.batch < 24


def test_rising_throughput_is_best_at_max() -> None:
    verdict = search(published(ZERO2_1_CAM, 24), Goal(max_batch=256)).verdict
    assert verdict.best == verdict.safe  # 66 % of capacity
    assert (verdict.best.batch, verdict.best.samples_per_s) == (24, 23.6)
    assert verdict.points >= 2


def test_flat_throughput_at_the_top_is_walked() -> None:
    verdict = search(published(FSDP_1_CAM, 12), Goal(max_batch=256)).verdict
    assert verdict.best.batch == 12
    assert verdict.safe.batch in (10, 11)
    assert verdict.safe.held <= 0.9


@some
@given(st.integers(2, 600), st.floats(0.1, 1.0), st.floats(0.3, 1.0), st.floats(0.05, 0.8))
def test_best_is_near_the_peak_of_throughput(most: int, at: float, headroom: float, static: float) -> None:
    """One hump, anywhere below max: best comes within 4 % of it, in at most fourteen attempts, max included."""
    top = max(1, round(most * at))
    world = World(parabola(static, most, 0.1), rate=lambda batch: 100 * (batch / top) * math.exp(1 - batch / top))
    goal = Goal(max_batch=5000, headroom=headroom)
    found = search(world, goal)
    verdict = found.verdict
    highest = max(world.rate(batch) or 0 for batch in range(1, most + 1))
    assert verdict.best.samples_per_s >= 0.96 * highest
    assert found.attempts <= 14
    roomy = [world.rate(batch) or 0 for batch in range(1, most + 1) if world.share(batch) <= headroom]
    assert (verdict.safe is not None) == bool(roomy)
    if verdict.safe:
        assert verdict.safe.samples_per_s >= 0.8 * max(roomy)


def test_a_best_that_does_not_hold_gives_way() -> None:
    """Batch 32 looks fastest for a few steps and falls to half at the full step count."""
    world = World(parabola(0.2, 32, 0.0), rate=lambda batch: 10.0 * batch)
    goal, fading = Goal(max_batch=100, headroom=1.0), {"samples_per_s": 160.0}
    observations: list[Observation] = []
    while not isinstance(step := next_step(observations, goal), Verdict):
        if isinstance(step, Scout):
            observations += world.scout(step.batches)
        else:
            seen = world.attempt(step.batch, fresh=True, full=step.full)
            observations.append(seen.model_copy(update=fading) if step.full and step.batch == 32 else seen)
    assert step.best.batch < 32
    assert step.best.samples_per_s > 160
    assert step.confirmed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_batch": 0}, "a batch is at least 1, not 0"),
        ({"max_batch": 8, "granularity": 0}, "a batch is at least 1, not 0"),
        ({"max_batch": 8, "granularity": 16}, "granularity 16 is above the largest batch allowed, 8"),
        ({"max_batch": 8, "tolerance": -0.1}, "from 0 .exact. to below 1 .*not -0.1"),
        ({"max_batch": 8, "tolerance": 3.0}, "0.03 is 3 %.*not 3"),
        ({"max_batch": 8, "headroom": 0.0}, "above 0 and up to 1 .*not 0"),
        ({"max_batch": 8, "headroom": 90.0}, "0.9 is 90 %.*not 90"),
    ],
)
def test_bad_goals(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Goal.model_validate(fields)


SIZES = {"samples": 2000, "scanned": 2000, "smallest": 32, "largest": 1024}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {"largest_batch": 2048, "largest_measured_batch": 64},
            "samples hold 32 to 1,024 values: a batch of the largest, 2,048 values, fits; in 20 measured steps, batches"
            " held up to 64",
        ),
        (
            {"smallest": 1024, "scanned": 900},
            "bench looked at 900 of 2,000 samples, all of one size: with larger ones, the batch may not fit",
        ),
        ({"smallest": 1024}, None),
        (
            {"samples": None, "scanned": None, "smallest": None, "largest": None}
            | {"largest_batch": 2048, "largest_measured_batch": 64},
            "the worst batch of the workload, 2,048 values, fits; in 20 measured steps, batches held up to 64",
        ),
    ],
)
def test_a_verdict_says_with_which_samples_its_batch_fits(sizes: dict[str, int | None], said: str | None) -> None:
    world = World(lambda batch: batch / 10)
    seen = [
        world.attempt(batch, fresh=True, full=True).model_copy(
            update={"sizes": SampleSizes(**{**SIZES, **sizes}), "steps": 20}
        )
        for batch in (1, 2)
    ]
    found = next_step(seen, Goal(max_batch=2))
    assert isinstance(found, Verdict)
    assert found.why.endswith(said) if said else "samples" not in found.why.replace("samples/s", "")


def test_a_verdict_says_what_its_memory_was_seen_with_and_whether_it_still_grew() -> None:
    world = World(lambda batch: batch / 10)
    steady = {"steps": 20, "longest": 1024}
    for changes, said in (
        (steady, "; its memory was seen in 20 measured steps, the longest sample 1,024 tokens"),
        (
            steady | {"grew_at": 17},
            "; its peak still grew in step 17 of 20: a longer training may need more; its memory",
        ),
    ):
        seen = [world.attempt(batch, fresh=True, full=True).model_copy(update=changes) for batch in (1, 2)]
        found = next_step(seen, Goal(max_batch=2))
        assert said in found.why
