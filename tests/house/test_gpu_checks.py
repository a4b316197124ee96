"""The report of `make gpu`, which needs no GPU to be written."""

from checks import Line, page
from examples import CUDA_MACHINE


def test_a_check_is_a_line_with_its_figures() -> None:
    lines = [
        Line("Phases sum to the total.", "passed", {"largest": "0.4 %", "a|b": "c\nd"}, 12.4),
        Line("A hang is named.", "skipped", {"why": "needs 2 CUDA devices"}, 0.0),
    ]
    text = page(CUDA_MACHINE, lines)
    assert text.startswith("# Checks on 2 × Example GPU\n")
    assert "1 passed, 1 skipped. Driver 1.0" in text
    assert "| Phases sum to the total. | passed | largest: 0.4 %; a\\|b: c d | 12 |\n" in text
    assert "| A hang is named. | skipped | why: needs 2 CUDA devices | 0 |\n" in text


def test_a_check_without_figures_has_an_empty_cell() -> None:
    assert "| It is so. | passed | | 1 |" in page(CUDA_MACHINE, [Line("It is so.", "passed", {}, 1.0)])
