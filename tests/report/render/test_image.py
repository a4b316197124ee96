"""Charts as images, and the libraries that only some exports need."""

import io
import struct
from pathlib import Path

import pytest
from examples import mixed, result

from bench.errors import InputError
from bench.records.outcome import Skipped
from bench.report.render import image, plots
from bench.report.render.formats import FORMATS, drawn
from bench.report.render.image import needed
from bench.report.tables.sections import Report


def test_a_png_has_all_charts_at_twice_their_size() -> None:
    pytest.importorskip("vl_convert")
    report = Report(results=mixed())
    charts = drawn(report)
    assert len(charts) > 1
    content = image.png(charts)
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width == image.PIXELS * plots.WIDTH
    one = image.png(charts[:1])
    assert height > struct.unpack(">II", one[16:24])[1]


def test_an_image_has_its_colors_and_its_text() -> None:
    """Without the words of a chart it is another image; a converter without its font would draw none."""
    pytest.importorskip("vl_convert")
    pillow = pytest.importorskip("PIL.Image")
    charts = drawn(Report(results=mixed()))
    pixels = pillow.open(io.BytesIO(image.png(charts))).convert("RGB")
    colors = {color for _, color in pixels.getcolors(maxcolors=2**24)}
    assert {(255, 255, 255), (0x00, 0x72, 0xB2)} <= colors  # the paper, and the first series
    title = pixels.crop((0, 0, pixels.width, 2 * 36))
    assert len(title.getcolors(maxcolors=2**24)) > 2


def test_a_pdf_is_one_page() -> None:
    pytest.importorskip("vl_convert")
    content = image.pdf(drawn(Report(results=mixed())))
    assert content.startswith(b"%PDF-")
    assert b"/Count 1\n" in content
    assert b"LiberationSans" in content


def test_an_svg_holds_every_title() -> None:
    report = Report(results=mixed())
    text = FORMATS["svg"].render(report, None)
    assert isinstance(text, str)
    assert all(chart.title in text for chart in drawn(report))


def test_a_report_without_charts_is_no_image() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        drawn(Report(results=[result(Skipped(reason="no"))]))


# Libraries that only some exports need


def test_an_installed_library_is_imported() -> None:
    assert needed("json", extra="any").loads("1") == 1


def test_a_missing_one_is_named_with_its_extra() -> None:
    with pytest.raises(InputError, match="needs the library no_such_library, which is not installed") as error:
        needed("no_such_library", extra="plots")
    assert error.value.fix == "pip install 'training-bench[plots]'"


def test_a_folder_of_that_name_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves a folder `wandb` where it was used."""
    (tmp_path / "left_by_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="needs the library left_by_library"):
        needed("left_by_library", extra="wandb")
