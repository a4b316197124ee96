"""A search that begins with a plan, whether the plan is right or wrong."""

import random
from collections.abc import Callable, Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from test_search import (
    World,
    attempts_bound,
    brute_force,
    check_certificate,
    goals,
    many,
    parabola,
    search,
    shares,
    some,
)

from bench.records.verdict import Goal
from bench.search import Line, Observation, Prior, Scout, next_step
from bench.search.data import evidence
from bench.search.max_batch import bracket_of

slopes = st.one_of(st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0]), st.floats(0, 0.2))
priors = st.lists(st.builds(Line, st.floats(-1, 2), slopes), min_size=1, max_size=3).map(
    lambda lines: Prior(tuple(lines))
)
"""What no model needs."""


def for_max(world: World, goal: Goal, prior: Prior | None) -> tuple[int, int]:
    """The largest batch that fits, and the attempts until it was certified."""
    found = search(world, goal, prior=prior)
    for attempts, boundary in enumerate(found.boundaries):
        bracket = bracket_of(evidence(found.observations[:boundary], goal).seen)
        if bracket.certificate(goal):
            return bracket.fits, attempts
    raise AssertionError("no certificate")


@many
@given(shares(), goals(tolerances=(0.0, 0.0, 0.03)), priors)
def test_any_plan_ends_in_the_certified_answer(share: Callable[[int], float], goal: Goal, prior: Prior) -> None:
    world = World(share)
    found = search(world, goal, prior=prior)
    if not goal.tolerance:
        assert found.verdict.max_batch_per_rank == brute_force(world, goal)
    assert found.attempts <= attempts_bound(goal, logs=3)
    check_certificate(found, goal)


@many
@example(0.5, 76, 0.0, Goal(max_batch=8192, granularity=2), Prior((Line(1 / 128, 0.01),)))
@given(st.floats(0.05, 0.95), st.integers(0, 5000), st.sampled_from([0.0, 0.02, 0.3, 0.9]), goals(), priors)
def test_a_wrong_plan_costs_at_most_three_attempts(
    static: float, most: int, bend: float, goal: Goal, prior: Prior
) -> None:
    world = World(parabola(static, most, bend))
    fits, with_plan = for_max(world, goal, prior)
    assert (fits, with_plan) <= (fits, for_max(world, goal, None)[1] + 3)


@some
@given(shares(), goals(), priors, st.sampled_from([0.002, 0.005]), st.integers(0, 2**32))
def test_noise_and_a_wrong_plan_never_cost_the_certificate(
    share: Callable[[int], float], goal: Goal, prior: Prior, noise: float, seed: int
) -> None:
    found = search(World(share, noise=noise, dice=random.Random(seed)), goal, prior=prior)
    assert found.attempts <= attempts_bound(goal, logs=3)
    check_certificate(found, goal)


@some
@given(shares(), goals(), priors, st.data())
def test_a_search_resumes_without_its_plan(
    share: Callable[[int], float], goal: Goal, prior: Prior, data: st.DataObject
) -> None:
    world = World(share)
    found = search(world, goal, prior=prior)
    torn = search(world, goal, found.observations[: data.draw(st.integers(0, len(found.observations)))])
    assert torn.verdict.max_batch_per_rank == found.verdict.max_batch_per_rank


def steps(world: World, goal: Goal, prior: Prior, known: Sequence[Observation] = ()) -> list[tuple[int, bool]]:
    """The batch of each observation up to the certificate, and whether it was fresh."""
    found = search(world, goal, known, prior=prior)
    _, attempts = for_max(world, goal, prior)
    return [(o.batch, o.fresh) for o in found.observations[: found.boundaries[attempts]]]


LINE = Prior((Line(0.3, 0.7 / 40.5),))
"""40 fit."""
GOAL = Goal(max_batch=5000, tolerance=0)


def test_two_attempts_are_enough_where_the_plan_is_right() -> None:
    assert steps(World(parabola(0.3, 40, 0.0)), GOAL, LINE) == [(40, True), (41, True)]


def test_the_first_peak_corrects_the_plan() -> None:
    assert steps(World(parabola(0.25, 43, 0.0)), GOAL, LINE) == [(40, True), (43, True), (44, True)]


def test_a_plan_that_is_off_by_one_costs_nothing() -> None:
    assert steps(World(parabola(0.3, 39, 0.0)), GOAL, LINE) == [(40, True), (39, True)]


def test_a_plan_that_is_off_by_one_coarse_candidate_costs_nothing() -> None:
    coarse = Prior((Line(0.3, 0.7 / 10.9),))
    assert steps(World(parabola(0.3, 9, 0.0)), GOAL, coarse) == [(10, True), (9, True)]


def test_a_plan_that_promises_too_much_gives_way_to_a_walk() -> None:
    found = steps(World(parabola(0.5, 30, 0.0)), GOAL, LINE)
    assert found[:2] == [(40, True), (39, True)]
    assert [batch for batch, fresh in found if not fresh] == [1, 2, 4, 8, 16, 32]
    assert found[-2:] == [(30, True), (31, True)]


def test_a_peak_that_is_not_known_leaves_the_search_without_its_plan() -> None:
    seen = Observation(batch=40, outcome="ok", fresh=True, peak_bytes=None, capacity_bytes=100, samples_per_s=1.0)
    assert isinstance(next_step([seen], GOAL, prior=LINE), Scout)


def test_where_candidates_are_fine_the_plan_only_adds_to_the_walk() -> None:
    fine = Prior((Line(0.3, 0.7 / 1000.5),))
    step = next_step([], GOAL, prior=fine)
    assert 900 in step.batches


def test_the_highest_line_of_a_plan_counts() -> None:
    prior = Prior((Line(0.5, 0.01), Line(0.2, 0.04)))
    assert [prior.at(batch) for batch in (0, 10, 20)] == [0.5, 0.6000000000000001, 1.0]
    assert (prior.reaches(0.55), prior.reaches(1.0)) == (5.000000000000004, 20.0)
