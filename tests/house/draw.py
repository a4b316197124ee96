"""`make map`: draws the rooms of bench and who imports whom, from the code itself, as bench/guides/house.svg.

The floors are the layers that import-linter holds (pyproject.toml). An arrow that others already imply is left out of
the picture: where cli -> sweep -> launch stands, cli -> launch is not drawn.
"""

import ast
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

import grimp
import networkx

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "bench" / "guides" / "house.svg"
INNER = ("bench.report.render", "bench.report.tables")
"""Rooms inside a room."""

BOX, GAP = 172, 16
MARGIN, FLOOR = 24, 108
WIDTH = 1080

Arrows = set[tuple[str, str]]


def floors() -> list[list[str]]:
    """Rooms from the top floor to the ground, as the layers contract names them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(
        contract for contract in contracts if contract["type"] == "layers" and "bench.cli" in contract["layers"]
    )
    return [[room.strip() for room in layer.split("|")] for layer in layers["layers"]]


def room_of(module: str) -> str:
    """The room that a module stands in; the rooms inside of report are rooms of their own."""
    inner = next((room for room in INNER if module == room or module.startswith(f"{room}.")), None)
    return inner or ".".join(module.split(".")[:2])


def imports() -> Arrows:
    """Every pair of modules of which one imports the other."""
    graph = grimp.build_graph("bench")
    return {
        (module, imported) for module in graph.modules for imported in graph.find_modules_directly_imported_by(module)
    }


def arrows() -> Arrows:
    """Every pair of rooms of which one imports the other."""
    pairs = {(room_of(module), room_of(imported)) for module, imported in imports()}
    return {(one, other) for one, other in pairs if one != other and "bench" not in (one, other)}


def needed(pairs: Arrows) -> Arrows:
    """The arrows that no way over other rooms implies.

    Raises:
        networkx.NetworkXError: the rooms import each other in a circle.
    """
    return set(networkx.transitive_reduction(networkx.DiGraph(pairs)).edges)


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    folder = ROOT.joinpath(*room.split("."))
    text = ast.get_docstring(
        ast.parse((folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text())
    )
    assert text, f"{room} has no docstring"
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].split(": ", 1)[-1].rstrip(".")


def svg() -> str:
    """The picture. It is the same for the same code."""
    rows = _rows()
    place = {
        room: ((WIDTH - len(row) * (BOX + GAP) + GAP) / 2 + index * (BOX + GAP), MARGIN + level * FLOOR)
        for level, row in enumerate(rows)
        for index, room in enumerate(row)
    }
    height = MARGIN * 2 + len(rows) * FLOOR - 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif">',
        "<title>The rooms of bench; an arrow points from a room to one that it imports</title>",
        "<style>rect{fill:#f6f8fa;stroke:#8c959f}text{fill:#1f2328}.name{font-size:14px;font-weight:600}"
        ".what{font-size:10.5px;fill:#59636e}path{fill:none;stroke:#8c959f;stroke-width:1.2}"
        "@media(prefers-color-scheme:dark){rect{fill:#161b22;stroke:#6e7681}text{fill:#e6edf3}.what{fill:#9198a1}}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#8c959f;stroke:none"/></marker></defs>',
    ]
    for one, other in sorted(needed(arrows())):
        (x1, y1), (x2, y2) = place[one], place[other]
        start, end = (x1 + BOX / 2, y1 + _height(one)), (x2 + BOX / 2, y2)
        middle = (start[1] + end[1]) / 2
        points = [start, (start[0], middle), (end[0], middle), end]
        way = "M{} C{} {} {}".format(*(f"{x:.0f} {y:.0f}" for x, y in points))
        lines.append(f'<path d="{way}" marker-end="url(#tip)"/>')
    for room, (x, y) in place.items():
        lines.append(f'<rect x="{x:.0f}" y="{y}" width="{BOX}" height="{_height(room)}" rx="6"/>')
        lines.append(f'<text class="name" x="{x + 9:.0f}" y="{y + 18}">{room.removeprefix("bench.")}</text>')
        for number, text in enumerate(_lines(room)):
            lines.append(f'<text class="what" x="{x + 9:.0f}" y="{y + 34 + number * 13}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _rows() -> list[list[str]]:
    """The floors, with the rooms inside of report on floors of their own between report's and the one above."""
    rows: list[list[str]] = []
    for floor in floors():
        if "bench.report" in floor:
            rows += [[INNER[0]], [INNER[1], *(room for room in floor if room != "bench.report")], ["bench.report"]]
        else:
            rows.append(floor)
    return rows


def _lines(room: str) -> list[str]:
    return wrap(purpose(room), 29, max_lines=3, placeholder=" …")


def _height(room: str) -> int:
    return 28 + 13 * len(_lines(room))


def upward(pairs: Arrows) -> Arrows:
    """Arrows that do not go down."""
    level = {room: number for number, row in enumerate(_rows()) for room in row}
    return {(one, other) for one, other in pairs if level[one] >= level[other]}


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg())
    pairs = arrows()
    print(
        f"{PICTURE.relative_to(ROOT)}: {sum(map(len, floors()))} rooms on {len(floors())} floors, {len(pairs)} arrows"
    )
    for one, other in sorted(pairs):
        print(f"  {one} -> {other}")
