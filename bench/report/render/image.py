"""Charts as PNG or PDF: their SVG, converted by vl-convert, which brings its own fonts."""

import re
from collections.abc import Sequence
from typing import Any

from bench.report.render import plots
from bench.report.render.extras import needed
from bench.report.tables.figure import Chart

PIXELS = 2
"""Pixels of a PNG for each of the SVG, so that it is sharp in print."""


def png(charts: Sequence[Chart]) -> bytes:
    """All charts below each other."""
    image: bytes = _converter().svg_to_png(_plain(plots.svg(*charts)), scale=PIXELS)
    return image


def pdf(charts: Sequence[Chart]) -> bytes:
    """All charts on one page."""
    image: bytes = _converter().svg_to_pdf(_plain(plots.svg(*charts)))
    return image


def _converter() -> Any:
    return needed("vl_convert", extra="plots")


def _plain(svg: str) -> str:
    """The light colors put where they are used: the converter knows neither variables of CSS nor a dark scheme."""
    colors = dict(reversed(re.findall(r"(--\w+): (#\w+);", svg)))  # of two schemes, the first
    svg = re.sub(r"@media[^@]*?\n}\n|^ *--.*\n", "", svg, flags=re.MULTILINE)
    svg = svg.replace("--color: ", "color: ").replace("var(--color)", "currentColor")
    return re.sub(r"var\((--\w+)\)", lambda use: colors[use[1]], svg)
