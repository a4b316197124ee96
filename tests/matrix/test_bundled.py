"""A matrix that comes with bench is found by name; the user's own files come first."""

from pathlib import Path

import pytest

from bench.errors import InputError
from bench.matrix.bundled import bundled, named, purpose


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_name_is_a_bundled_matrix_unless_a_file_has_it() -> None:
    Path("quickstart").mkdir()
    assert named(Path("quickstart")) == bundled()["quickstart"]
    Path("quickstart").rmdir()
    Path("quickstart").write_text("{}")
    assert named(Path("quickstart")) == Path("quickstart")


@pytest.mark.parametrize("path", ["quickstart.yaml", "some/quickstart", "."])
def test_a_path_is_left_as_it_is(path: str) -> None:
    assert named(Path(path)) == Path(path)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    Path("my_matrix.yaml").write_text("{}")
    with pytest.raises(InputError, match="no such file") as error:
        named(Path("quickstrt"))
    assert error.value.fix == "did you mean 'quickstart'?"
    with pytest.raises(InputError) as error:
        named(Path("my_matrix"))
    assert error.value.fix == "did you mean 'my_matrix.yaml'?"


def test_the_purpose_is_the_first_sentence_over_lines() -> None:
    assert purpose("# schema\n# What does\n# it cost? The rest.\nmatrix: {}\n") == "What does it cost?"
    assert purpose("# schema\n# ZeRO-2 on pi0.5.\nmatrix: {}  # more\n") == "ZeRO-2 on pi0.5."


def test_every_bundled_matrix_says_its_purpose_in_one_line() -> None:
    assert all(0 < len(purpose(file.read_text())) < 90 for file in bundled().values())
