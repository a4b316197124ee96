"""Messages on one line."""

import pytest

from bench.errors import CUT, InputError, one_line


def test_control_characters_are_escaped_and_lines_joined() -> None:
    assert one_line("  one\n\ttwo  three\x1b[31m\u202e") == r"one two three\x1b[31m\u202e"


@pytest.mark.parametrize("limit", range(20, 120))
def test_a_long_message_keeps_both_ends_and_whole_words(limit: int) -> None:
    words = [f"word{number}" for number in range(60)]
    short = one_line(" ".join(words), limit)
    assert len(short) <= limit
    head, tail = short.split(CUT)
    assert head.split() == words[: len(head.split())]
    assert tail.split() == words[-len(tail.split()) :]


def test_a_single_word_that_is_too_long_is_cut_itself() -> None:
    short = one_line("x" * 500, 100)
    assert len(short) <= 100
    assert short.startswith("x" * 60)
    assert short.endswith("x" * 30)


def test_a_short_message_stays_as_it_is() -> None:
    assert one_line("a b", 3) == "a b"
    assert str(InputError("a problem", where="a file", fix="do this")) == "a file: a problem\n  do this"
