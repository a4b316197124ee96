"""Sets of times as sorted, disjoint half-open intervals of whole nanoseconds, so that sums are exact. Pure."""

from collections.abc import Iterable, Iterator, Sequence

Interval = tuple[int, int]
Intervals = Sequence[Interval]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The times that any of the intervals covers, in whatever order they come."""
    merged: list[Interval] = []
    for start, end in sorted(one for one in intervals if one[0] < one[1]):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def intersection(ones: Intervals, others: Intervals) -> list[Interval]:
    """The times that are in both sets."""
    common: list[Interval] = []
    one = other = 0
    while one < len(ones) and other < len(others):
        (start, end), (since, until) = ones[one], others[other]
        if end < until:
            one += 1
        else:
            other += 1
            end = until
        start = max(start, since)
        if start < end:
            common.append((start, end))
    return common


def divided(whole: Intervals, sets: Sequence[Intervals]) -> list[list[Interval]]:
    """The times of ``whole``, each given to the first of the sets that has it."""
    inside = 1 << len(sets)
    toggled = [(at, 1 << number) for number, spans in enumerate([*sets, whole]) for span in spans for at in span]
    found: list[list[Interval]] = [[] for _ in sets]
    since = present = 0
    for at, bit in sorted(toggled):
        if at > since:
            if present > inside:  # `whole` has the moment, and one of the sets
                mine = found[(present & -present).bit_length() - 1]
                if mine and mine[-1][1] == since:
                    mine[-1] = mine[-1][0], at
                else:
                    mine.append((since, at))
            since = at
        present ^= bit
    return found


def innermost(nested: Iterable[tuple[Interval, str]]) -> Iterator[tuple[Interval, str]]:
    """Each moment with the label of the innermost interval around it. Intervals nest, or are apart."""
    around: list[tuple[int, str]] = []
    at = 0
    for (start, end), label in sorted(nested, key=lambda one: (one[0][0], -one[0][1])):
        while around and around[-1][0] <= start:
            until, ended = around.pop()
            if at < until:
                yield (at, until), ended
            at = max(at, until)
        if around and at < start:
            yield (at, start), around[-1][1]
        at = max(at, start)
        around.append((min(end, around[-1][0]) if around else end, label))
    while around:
        until, ended = around.pop()
        if at < until:
            yield (at, until), ended
        at = max(at, until)


def total(intervals: Intervals) -> int:
    """Nanoseconds."""
    return sum(end - start for start, end in intervals)
