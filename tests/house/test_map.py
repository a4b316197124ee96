"""The house: few rooms, few arrows, none upward, and a picture that shows what is."""

import networkx
from draw import PICTURE, arrows, floors, imports, needed, svg, upward

MOST_ROOMS, MOST_FLOORS, MOST_ARROWS = 22, 8, 80


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


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even inside a room, and not when a function or a type checker does. `bench` itself has only `bench.load`."""
    graph = networkx.DiGraph(imports())
    graph.remove_node("bench")
    assert [found for found in networkx.strongly_connected_components(graph) if len(found) > 1] == []
