"""Charts as PNG or PDF: their SVG, converted by vl-convert, which brings its own fonts. It is an optional extra of the
package, as other libraries that only some exports need."""

import re
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from bench.errors import InputError
from bench.report.render import plots
from bench.report.tables.figure import Chart

PIXELS = 2
"""Pixels of a PNG for each of the SVG, so that it is sharp in print."""


def png(charts: Sequence[Chart]) -> bytes:
    """All charts below each other."""
    image: bytes = needed("vl_convert", extra="plots").svg_to_png(_plain(plots.svg(*charts)), scale=PIXELS)
    return image


def pdf(charts: Sequence[Chart]) -> bytes:
    """All charts on one page."""
    image: bytes = needed("vl_convert", extra="plots").svg_to_pdf(_plain(plots.svg(*charts)))
    return image


def needed(module: str, *, extra: str) -> ModuleType:
    """The module, imported now.

    Raises:
        InputError: it is not installed; names the extra that installs it.
    """
    missing = InputError(
        f"this export needs the library {module}, which is not installed", fix=f"pip install 'training-bench[{extra}]'"
    )
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise missing from error
    if found.__file__ is None:  # a folder of that name: W&B leaves a folder wandb/ where it was used
        raise missing
    return found


def _plain(svg: str) -> str:
    """The light colors put where they are used: the converter knows neither variables of CSS nor a dark scheme."""
    colors = dict(reversed(re.findall(r"(--\w+): (#\w+);", svg)))  # of two schemes, the first
    svg = re.sub(r"@media[^@]*?\n}\n|^ *--.*\n", "", svg, flags=re.MULTILINE)
    svg = svg.replace("--color: ", "color: ").replace("var(--color)", "currentColor")
    return re.sub(r"var\((--\w+)\)", lambda use: colors[use[1]], svg)
