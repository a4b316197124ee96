"""The straggler of a phase window: it is named with its phase and cost, and never from noise or too few steps."""

import random
from math import ceil

import pytest
from scipy.stats import binom

from bench.statistics.straggler import CHANCE, FEWEST_SIZED, USUAL, Straggler, needed, straggler

STEPS = 10


def ranks(*changes: dict[str, float], noise_s: float = 0.002, steps: int = STEPS) -> list[dict[str, list[float]]]:
    """One rank for each of ``changes`` to its phases, with noise from a fixed seed."""
    draw = random.Random(1)
    alike = {"dataload_wait": 0.001, "forward": 0.04, "bwd": 0.05}
    return [
        {
            phase: [alike[phase] + change.get(phase, 0.0) + draw.uniform(0, noise_s) for _ in range(steps)]
            for phase in alike
        }
        for change in changes
    ]


@pytest.mark.parametrize("phase", ["dataload_wait", "forward", "bwd"])
@pytest.mark.parametrize("slow", [0, 1, 3])
def test_a_slow_rank_is_named_with_its_phase_and_cost(phase: str, slow: int) -> None:
    found = straggler(ranks(*({phase: 0.05 * (rank == slow)} for rank in range(4))), [0.15] * STEPS)
    assert (found.rank, found.phase, found.n_late, found.n_steps) == (slow, phase, STEPS, STEPS)
    assert found.cost_s == pytest.approx(0.05, abs=0.005)
    assert found.share == pytest.approx(1 / 3, abs=0.04)


def test_a_rank_that_is_slow_everywhere_is_named_with_the_phase_of_the_largest_difference() -> None:
    found = straggler(ranks({}, {"forward": 0.04, "bwd": 0.05}), [0.2] * STEPS)
    assert (found.rank, found.phase) == (1, "bwd")
    assert found.cost_s == pytest.approx(0.09, abs=0.005)


def test_work_that_takes_longer_in_one_phase_and_less_in_another_makes_no_straggler() -> None:
    """A rank that is ahead after forward has time for a longer backward."""
    assert straggler(ranks({}, {"forward": -0.02, "bwd": 0.02}), [0.1] * STEPS) is None


def test_a_small_difference_is_none() -> None:
    assert straggler(ranks({}, {"bwd": 0.004}, noise_s=0.0), [0.1] * STEPS) is None


def test_two_slow_ranks_of_four_make_no_single_straggler() -> None:
    assert straggler(ranks({}, {"bwd": 0.05}, {"bwd": 0.05}, {}), [0.15] * STEPS) is None


def test_a_few_disturbed_steps_name_nobody() -> None:
    alike = ranks({}, {})
    for step in range(STEPS // 2):
        alike[1]["bwd"][step] += 1.0
    assert straggler(alike, [0.1] * STEPS) is None


def test_half_of_the_steps_name_nobody_among_many_ranks() -> None:
    """Chance would hardly do this to one of 8 ranks, but other work on the machine lasts for many steps."""
    alike = ranks(*[{}] * 8, steps=20)
    for step in range(10):
        alike[3]["bwd"][step] += 0.03
    assert straggler(alike, [0.1] * 20) is None


def test_the_phase_that_is_late_in_each_step_is_named_before_one_that_is_late_in_some() -> None:
    slow = ranks({}, {"dataload_wait": 0.01}, noise_s=0)
    for step in range(STEPS):
        slow[1]["bwd"][step] += 0.02 if step < 6 else -0.03
    found = straggler(slow, [0.1] * STEPS)
    assert (found.phase, found.n_late) == ("dataload_wait", STEPS)
    assert found.cost_s == pytest.approx(0.01)


def test_the_phase_is_the_largest_part_of_what_the_step_costs() -> None:
    """Each of the others is slower in another phase: no phase alone shows the difference."""
    times = [{"forward": 0.04, "bwd": 0.1}, {"forward": 0.14, "bwd": 0.0}, {"forward": 0.14, "bwd": 0.1}]
    slow = [
        {"dataload_wait": [0.0] * STEPS} | {phase: [time] * STEPS for phase, time in rank.items()} for rank in times
    ]
    found = straggler(slow, [0.3] * STEPS)
    assert (found.rank, found.phase) == (2, "forward")
    assert found.cost_s == pytest.approx(0.1)


def test_a_straggler_whose_phase_differs_from_step_to_step_has_no_phase_that_differs_not_at_all() -> None:
    slow = ranks({}, {}, noise_s=0, steps=21)
    for step in range(21):
        slow[1]["forward" if step % 3 else "bwd"][step] += 0.1
    found = straggler(slow, [0.2] * 21)
    assert (found.phase, found.n_late) == ("forward", 21)


def test_ranks_that_do_nothing_name_nobody() -> None:
    assert straggler([{"bwd": [0.0] * STEPS}] * 2, [0.0] * STEPS) is None


@pytest.mark.parametrize(
    "excess_percent",
    [
        [3.8, 6.7, 15.3, 13.9, 7.2, 5.1, 6.4, 7.7, 11.0, 1.9],
        [4.1, 8.5, 6.6, 1.6, 13.6, 3.7, 11.7, 2.1, 6.2, 25.7],
        [1.9, 3.9, 3.7, 12.1, 14.8, 6.7, 7.3, 8.1, 4.9, 7.4],
        [9.4, 3.1, 2.7, 4.6, 7.1, 5.5, 5.5, 4.5, 3.9, 11.0],
    ],
)
def test_other_work_that_slows_one_rank_a_little_for_all_steps_makes_no_straggler(excess_percent: list[float]) -> None:
    """Measured on two ranks that were alike, one of them with more own work in each of ten steps."""
    alike = [{"forward": [0.1] * STEPS}, {"forward": [0.1 * (1 + percent / 100) for percent in excess_percent]}]
    assert straggler(alike, [0.1] * STEPS) is None


def test_a_rank_that_is_late_by_just_the_share_in_each_step_is_named() -> None:
    assert straggler([{"bwd": [0.1] * STEPS}, {"bwd": [0.1051] * STEPS}], [0.1] * STEPS)
    assert straggler([{"bwd": [0.1] * STEPS}, {"bwd": [0.1049] * STEPS}], [0.1] * STEPS) is None


@pytest.mark.parametrize(("n_ranks", "series", "least"), [(2, 4, 10), (2, 8, 11), (3, 8, 10), (64, 8, 10)])
def test_needed_is_none_where_even_all_steps_are_too_few(n_ranks: int, series: int, least: int) -> None:
    assert [needed(steps, n_ranks, series) is None for steps in range(1, least + 1)] == [True] * (least - 1) + [False]


@pytest.mark.parametrize("n_ranks", [2, 4, 8, 64])
def test_too_few_steps_name_nobody(n_ranks: int) -> None:
    least = FEWEST_SIZED
    changes = [{"bwd": 0.05 * (rank == 1)} for rank in range(n_ranks)]
    assert straggler(ranks(*changes, steps=least - 1), [0.15] * (least - 1)) is None
    found = straggler(ranks(*changes, steps=least), [0.15] * least)
    assert found.rank == 1


def one_phase(excess_percent: list[float]) -> Straggler | None:
    """Of two ranks whose steps take 100 ms."""
    slow = [0.1 * (1 + percent / 100) for percent in excess_percent]
    return straggler([{"bwd": [0.1] * len(slow)}, {"bwd": slow}], [0.1] * len(slow))


@pytest.mark.parametrize("excess_percent", [[39, 40, 41], [24, 19, 23, 31, 18], [87, 83, 88], [36, 41, 45, 42, 43]])
def test_a_large_cost_is_named_by_its_size_in_few_steps(excess_percent: list[float]) -> None:
    """Measured beside a busy core and with a late loader."""
    found = one_phase(excess_percent)
    assert (found.rank, found.phase, found.n_late) == (1, "bwd", len(excess_percent))


@pytest.mark.parametrize("excess_percent", [[40, 41], [100, 1, 1], [33, 28, 14, 0, -13], [9, 4, 8, 7, 2]])
def test_few_steps_name_nobody_by_a_size_that_differs_or_is_small(excess_percent: list[float]) -> None:
    assert one_phase(excess_percent) is None


def test_enough_steps_name_what_is_late_in_each_by_sizes_that_differ() -> None:
    uneven = [8.0, 6.0, 60.0, 7.0, 6.0]
    assert one_phase(uneven) is None
    assert one_phase(uneven * 4)


def test_noise_of_other_phases_hides_no_straggler() -> None:
    """The whole step varies by more than the loader is late, which is late in each step."""
    slow = ranks({}, {"dataload_wait": 0.05})
    draw = random.Random(5)
    for work in slow:
        work["bwd"] = [draw.uniform(0, 0.1) for _ in range(STEPS)]
    found = straggler(slow, [0.15] * STEPS)
    assert (found.rank, found.phase, found.n_late) == (1, "dataload_wait", STEPS)


@pytest.mark.parametrize("n_ranks", [2, 3, 8])
@pytest.mark.parametrize("n_steps", [10, 11, 20, 50])
@pytest.mark.parametrize("series", [1, 8])
def test_needed_is_the_binomial_quantile_and_most_steps(n_steps: int, n_ranks: int, series: int) -> None:
    tails = {late: series * n_ranks * binom.sf(late - 1, n_steps, 1 / n_ranks) for late in range(1, n_steps + 1)}
    quantile = min((late for late, tail in tails.items() if tail <= CHANCE), default=None)
    assert needed(n_steps, n_ranks, series) == (None if quantile is None else max(quantile, ceil(USUAL * n_steps)))


@pytest.mark.parametrize("n_ranks", [2, 64])
def test_a_window_may_have_thousands_of_steps(n_ranks: int) -> None:
    assert needed(3000, n_ranks, 8) == 2250


@pytest.mark.parametrize("n_ranks", [2, 8])
@pytest.mark.parametrize("n_phases", [1, 7])
def test_ranks_that_are_alike_rarely_show_a_straggler(n_ranks: int, n_phases: int) -> None:
    assert named_by_chance(n_ranks, n_phases, STEPS, 1000) / 1000 <= CHANCE


@pytest.mark.parametrize("n_steps", [11, 12, 20])
@pytest.mark.parametrize("n_phases", [1, 3, 7])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_chance_names_no_more_than_the_bound(n_ranks: int, n_phases: int, n_steps: int) -> None:
    """The bound itself gives no more in 999 of 1000 such tests."""
    assert named_by_chance(n_ranks, n_phases, n_steps, 1000) <= binom.isf(0.001, 1000, float(CHANCE))


def named_by_chance(n_ranks: int, n_phases: int, n_steps: int, trials: int) -> int:
    """Noise far above the share that counts: the bound on the probability must hold alone. Phases are more tries."""
    draw = random.Random(2)
    return sum(
        straggler(
            [
                {str(phase): [draw.expovariate(1.0) for _ in range(n_steps)] for phase in range(n_phases)}
                for _ in range(n_ranks)
            ],
            [0.01] * n_steps,
        )
        is not None
        for _ in range(trials)
    )
