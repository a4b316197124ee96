"""The registry of figures: names that are told apart, and what ranks and launches make of one."""

import pytest
from examples import rank, vram

from bench.records.figures import ALLOC_RETRIES, CAPACITY, FIGURES, METRICS, PEAK_RESERVED, TIMED, Figure


@pytest.mark.parametrize(("figure", "combined"), [(PEAK_RESERVED, 3), (CAPACITY, 1), (ALLOC_RETRIES, 6)])
def test_ranks_and_launches_combine_as_the_entry_says(figure: Figure, combined: int) -> None:
    assert figure.combined([1, 3, 2]) == combined
    assert figure.combined([1, None, 2]) is figure.combined([]) is None


def test_names_are_unique_and_every_figure_of_a_rank_can_be_taken_from_one() -> None:
    assert len(METRICS) == len(FIGURES) + len(TIMED)
    on_gpu = rank(memory=vram(1, 2))
    assert all(figure.of_rank is not None and figure.of_rank(on_gpu) is not None for figure in FIGURES)
