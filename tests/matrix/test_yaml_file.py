"""What is written is read again as the same values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from bench.matrix.yaml_file import dump, parse

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"[0-9eE.+_xo-]{1,6}", fullmatch=True)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=6,
)


@given(VALUES)
def test_what_is_written_is_read_as_it_was(value: JsonValue) -> None:
    assert parse(dump(value), str, "given").data == value


@pytest.mark.parametrize(
    "text", ["1e-4", "0o17", "09", "5e3", "no", "null", "2026-01-01", "it: s", "a\x85b", "a " * 99]
)
def test_a_text_stays_a_text(text: str) -> None:
    assert parse(dump({text: [text]}), str, "given").data == {text: [text]}
    assert "\n  " not in dump({"k": text})  # a user's grep finds it
