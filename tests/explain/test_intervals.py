"""Arithmetic of intervals, against sets of whole numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.explain.intervals import Interval, divided, intersection, total, union

ANY = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair))), max_size=12)


def members(intervals: list[Interval]) -> set[int]:
    return {number for start, end in intervals for number in range(start, end)}


@given(ANY, st.lists(ANY, max_size=4))
def test_each_moment_goes_to_the_first_set_that_has_it(ones: list[Interval], others: list[list[Interval]]) -> None:
    whole, sets = union(ones), [union(each) for each in others]
    left = members(whole)
    for wanted, taken in zip(sets, divided(whole, sets), strict=True):
        assert members(taken) == left & members(wanted)
        assert taken == union(taken)
        left -= members(wanted)


@given(ANY, ANY)
def test_intervals_behave_as_sets_of_moments(ones: list[Interval], others: list[Interval]) -> None:
    one, other = union(ones), union(others)
    for found, expected in (
        (one, members(ones)),
        (intersection(one, other), members(ones) & members(others)),
    ):
        assert members(found) == expected
        assert total(found) == len(expected)
        assert all(start < end for start, end in found)
        assert all(end < start for (_, end), (start, _) in pairwise(found)) or not found
