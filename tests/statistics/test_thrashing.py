"""Which batches thrash."""

import pytest

from bench.statistics.thrashing import Fit, thrashing_batches


@pytest.mark.parametrize(
    ("fits", "thrashing"),
    [
        ([], set()),
        ([Fit(1, 10.0), Fit(2, 5.0)], set()),  # slower, but with memory to spare
        ([Fit(1, 10.0), Fit(2, 9.6, at_ceiling=True)], {2}),
        ([Fit(1, 10.0), Fit(2, 9.8, at_ceiling=True)], set()),  # noise
        ([Fit(2, 9.0, at_ceiling=True), Fit(1, 10.0)], {2}),  # in any order
        ([Fit(1, 9.0, at_ceiling=True), Fit(2, 10.0, at_ceiling=True)], set()),
        ([Fit(1, 10.0), Fit(2, 20.0, retried=True)], {2}),
        ([Fit(1, 10.0), Fit(2, 0.0, at_ceiling=True)], {2}),
    ],
)
def test_a_batch_thrashes_at_the_ceiling_below_a_smaller_ones_throughput(fits: list[Fit], thrashing: set[int]) -> None:
    assert thrashing_batches(fits) == thrashing
