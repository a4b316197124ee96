"""Messages of bad input: shortened between words, both ends kept."""

import pytest

from bench.errors import CUT, MORE, InputError, beginning, near_miss, one_line


def test_a_name_that_begins_like_what_was_said_is_meant() -> None:
    assert "A100-" in (near_miss("A100", ["A10", "A100-40GB", "A100-80GB", "H100"]) or "")
    assert near_miss("DDP", ["ddp", "fsdp"]) == "did you mean 'ddp'?"
    assert near_miss("zero", ["ddp", "fsdp"]) is None


def test_a_short_text_stays_as_it_is() -> None:
    assert one_line("no such file") == one_line("no such file", 12) == "no such file"
    assert one_line(" a\n\n  b\t\x1b[31m ") == "a b \\x1b[31m"


@pytest.mark.parametrize("limit", range(20, 120, 7))
def test_a_long_text_keeps_whole_words_of_both_ends(limit: int) -> None:
    text = " ".join(f"word{number}" for number in range(100))
    shown = one_line(text, limit)
    assert len(shown) <= limit
    head, tail = shown.split(CUT)
    assert text.startswith(f"{head} ")
    assert text.endswith(f" {tail}")


@pytest.mark.parametrize("limit", range(20, 120, 7))
def test_the_beginning_of_a_text_ends_after_a_whole_word(limit: int) -> None:
    text = ", ".join(f"word{number}" for number in range(100))
    shown = beginning(text, limit)
    assert len(shown) <= limit
    assert shown.endswith(MORE)
    assert text.startswith(f"{shown.removesuffix(MORE)}, ")
    assert beginning("a  short\none", 20) == "a short one"
    assert beginning("x" * 500, limit) == "x" * (limit - len(MORE)) + MORE


@pytest.mark.parametrize("text", ["x" * 500, f"a {'x' * 500} b", f"/{'folder/' * 80}file.yaml:7"])
def test_one_word_that_is_too_long_is_cut(text: str) -> None:
    shown = one_line(text, 60)
    assert len(shown) <= 60
    assert shown[:1] == text[:1]
    assert shown[-1:] == text[-1:]


def test_a_long_message_names_its_place_and_its_end() -> None:
    message = str(InputError("cannot be read: " + "far " * 400 + "end", where="x.yaml:7", fix="do this"))
    assert message.startswith("x.yaml:7: cannot be read: far")
    assert message.endswith("far end\n  do this")


def test_control_characters_are_escaped_and_lines_joined() -> None:
    assert one_line("  one\n\ttwo  three\x1b[31m\u202e") == r"one two three\x1b[31m\u202e"
