"""The registry of figures: names that are told apart, and what ranks and launches make of one."""

import pytest
from examples import rank, vram

from bench.records.figures import ALLOC_RETRIES, CAPACITY, ENERGY, FIGURES, METRICS, PEAK_RESERVED, TIMED, Figure
from bench.records.rank_outcome import Metered, Tokens


@pytest.mark.parametrize(("figure", "combined"), [(PEAK_RESERVED, 3), (CAPACITY, 1), (ALLOC_RETRIES, 6), (ENERGY, 2)])
def test_ranks_and_launches_combine_as_the_entry_says(figure: Figure, combined: int) -> None:
    assert figure.combined([1, 3, 2]) == combined
    assert figure.combined([1, None, 2]) is figure.combined([]) is None


def test_names_are_unique_and_every_figure_of_a_rank_can_be_taken_from_one() -> None:
    assert len(METRICS) == len(FIGURES) + len(TIMED)
    on_gpu = rank(memory=vram(1, 2), metered=Metered(samples=30, amounts={"joules": 90}))
    on_gpu = on_gpu.model_copy(update={"tokens": Tokens(samples=30, trained=(60,), places=(80,))})
    assert all(figure.of_rank is not None and figure.of_rank(on_gpu) is not None for figure in FIGURES)


def test_joules_per_sample_are_a_mean_over_ranks_and_unknown_without_a_counter() -> None:
    ranks = [
        rank(metered=Metered(samples=30, amounts={"joules": 90})),
        rank(1, metered=Metered(samples=30, amounts={"joules": 150})),
    ]
    assert ENERGY.of_rank is not None
    assert ENERGY.combined([ENERGY.of_rank(one) for one in ranks]) == 4
    assert ENERGY.of_rank(rank()) is None
    assert ENERGY.name == "energy_j_per_sample"
    assert ENERGY in FIGURES
