"""The house: few rooms, few arrows, none upward, and a picture that shows what is."""

from draw import PICTURE, arrows, floors, needed, svg, upward

MOST_ROOMS, MOST_FLOORS, MOST_ARROWS = 22, 8, 90


def test_the_house_stays_small() -> None:
    """Each bound is an agreed one: a change that needs more rooms or arrows must argue for them here."""
    assert sum(map(len, floors())) <= MOST_ROOMS
    assert len(floors()) <= MOST_FLOORS
    assert len(arrows()) <= MOST_ARROWS


def test_arrows_go_down_and_every_room_has_a_floor() -> None:
    assert upward(arrows()) == set()
    assert {room for pair in arrows() for room in pair} - {"bench.report.render", "bench.report.tables"} <= {
        room for floor in floors() for room in floor
    }


def test_an_arrow_that_others_imply_is_not_drawn() -> None:
    assert needed({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}


def test_an_arrow_that_goes_up_is_found() -> None:
    assert upward({("bench.records", "bench.cli"), ("bench.cli", "bench.records")}) == {("bench.records", "bench.cli")}


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text() == svg(), "`make map` draws it anew"
