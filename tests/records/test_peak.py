"""What lives at the peak of a step that is written by hand."""

import pytest

from bench.records.peak import BACKWARD, BUFFERS, AtPeak, Move, Seen, Span, at_peak

HELD = {1: ("weights", 100), 2: ("moments", 200), 3: ("gradients", 40)}
SPANS = [
    Span("dataload_wait", 0, 10, unit=False),
    Span("forward", 10, 50, unit=False),
    Span("Block", 20, 30, unit=True),
    Span("Attention", 22, 25, unit=True),
    Span("bwd", 50, 90, unit=False),
    Span("Block", 60, 70, unit=True),
    Span("optim_step", 90, 100, unit=False),
]


def peak(*moves: Move, seen: tuple[Seen, ...] = (), total: int = 350) -> AtPeak:
    return at_peak(total, HELD, moves, SPANS, seen)


def test_each_allocation_is_named_by_what_met_it_or_by_when_it_was_made() -> None:
    found = peak(
        Move(5, 10, 1),
        Move(12, 11, 2),
        Move(21, 12, 4),
        Move(23, 13, 8),
        Move(26, 14, 16),
        Move(55, 15, 32),
        Move(61, 16, 64),
        Move(62, 17, 128, own=False),
        Move(63, 18, 1000),
        Move(64, 18, -1000),
        Move(64, 11, -2),
        Move(65, 18, 7),
        seen=(Seen(27, 14, "gathered"), Seen(63, 18, "gathered"), Seen(66, 15, "gradients")),
    )
    assert found == AtPeak(
        when="bwd",
        parts={
            "gathered": 1016,
            "moments": 200,
            "transport": 128,
            "weights": 100,
            "activations of Block": 68,
            BUFFERS: 10,
            "gradients": 72,
            "activations of Attention": 8,
            "activations outside units": 2,
            "inputs": 1,
        },
    )
    assert found.total_bytes == 350 + 1255


def test_what_was_held_before_and_is_freed_until_the_peak_does_not_count() -> None:
    found = peak(Move(60, 3, -40), Move(80, 9, 50), Move(95, 8, 60), Move(96, 8, -60))
    assert (found.when, found.parts) == (
        "optim_step",
        {"moments": 200, "weights": 100, BACKWARD: 50, "optimizer": 60, BUFFERS: 10},
    )


@pytest.mark.parametrize("moves", [[], [Move(60, 3, -40)]])
def test_a_step_that_takes_nothing_has_its_peak_at_the_beginning(moves: list[Move]) -> None:
    assert peak(*moves).total_bytes == 350
