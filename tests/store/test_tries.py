"""Tries that ended with their machine are counted since the last result, and never those that have one."""

import os
from pathlib import Path

import pytest

from bench.store import tries

CELL = "ddp-0123456789"


def begun(root: Path, name: str, below: str = "attempts") -> Path:
    folder = root / below / CELL / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["b1", "b1-short-launch2", "walk"])
def test_only_what_began_last_is_underway_until_it_has_a_result_or_is_lost(tmp_path: Path, name: str) -> None:
    assert tries.underway(tmp_path, [CELL, "other"]) is None
    stopped = begun(tmp_path, "b9")  # by the user, in an earlier run
    os.utime(stopped / "spec.json", ns=(1, 1))
    last = begun(tmp_path, name)
    assert tries.underway(tmp_path, [CELL, "other"]) == last
    assert tries.underway(tmp_path, ["other"]) is None
    tries.lose(last, "the job ended")
    assert tries.lost(tmp_path, last) == ["the job ended"]
    assert tries.underway(tmp_path, [CELL]) is None
    (last / "lost.json").rename(last / "result.json")
    assert tries.underway(tmp_path, [CELL]) is None
    assert tries.lost(tmp_path, last) == []


def test_lost_tries_count_since_the_last_result(tmp_path: Path) -> None:
    for number, words in enumerate(("old", None, "first", "second")):
        folder = begun(tmp_path, f"b1.{number}", "superseded")
        if words is None:
            (folder / "result.json").write_text("{}")
        else:
            (folder / "lost.json").write_text(tries.Lost(reason=words).model_dump_json())
    begun(tmp_path, "b1.10", "superseded")  # the user stopped this one
    assert tries.lost(tmp_path, begun(tmp_path, "b1")) == ["first", "second"]


def test_a_torn_reason_is_none(tmp_path: Path) -> None:
    folder = begun(tmp_path, "b1")
    (folder / "lost.json").write_text('{"reason": "the jo')
    assert tries.lost(tmp_path, folder) == []
