"""Markdown: escaped, aligned, readable as plain text."""

import re

import pytest
from examples import rendered, result
from hypothesis import given
from hypothesis import strategies as st

from bench.records.outcome import Failed
from bench.report.render import markdown

HOSTILE = "a|b\n## c `d` <script>e</script> **f** [g](http://h) \x1b[31m _i_ ~~j~~ \\| &lt;"


def test_hostile_text_stays_in_its_cell() -> None:
    text = rendered([result(Failed(rank=0, phase="start", reason=HOSTILE)), result(batch=4)])
    rows = [line for line in text.splitlines() if "failed" in line]
    assert len(rows) == 1
    assert "\x1b" not in text
    assert "<script" not in text
    headers = next(line for line in text.splitlines() if line.startswith("| backend") and "outcome" in line)
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == headers.count("|")


@given(st.text())
def test_escaped_text_cannot_end_a_cell_or_a_line(text: str) -> None:
    escaped = markdown.escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(\\\\)*\|", escaped)
    assert "<" not in escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `bench run X_Y --a`, or_", "run `bench run X_Y --a`, or\\_"),
        ("one ` alone", "one \\` alone"),
        ("`a|b` and `<i>`, <i>", "\\`a\\|b\\` and `<i>`, &lt;i&gt;"),
    ],
)
def test_text_between_backticks_is_code(text: str, shown: str) -> None:
    assert markdown.words(text) == shown


def test_names_of_fields_are_left_readable() -> None:
    assert (
        markdown.escape("zero_grad_sched = 0.95 * (n - 1), sorted[0]") == "zero_grad_sched = 0.95 * (n - 1), sorted[0]"
    )
    assert markdown.escape("__init__") == r"\_\_init\_\_"


def test_long_reasons_are_cut() -> None:
    text = rendered([result(Failed(rank=0, phase="start", reason="x" * 5000))])
    assert max(len(line) for line in text.splitlines()) < 600


def test_columns_line_up_in_the_source() -> None:
    lines = rendered([result(batch=batch, backend=name) for name in ("ddp", "zero2") for batch in (1, 16)])
    for block in re.findall(r"(?:^\|.*\n)+", lines, re.MULTILINE):
        bars = [[match.start() for match in re.finditer(r"\|", line)][:-1] for line in block.splitlines()]
        assert all(one == bars[0] for one in bars)
