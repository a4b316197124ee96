"""Tries that ended with their machine are counted since the last result, and never those that have one."""

from pathlib import Path

from bench.store import tries

CELL = "ddp-0123456789"


def begun(root: Path, name: str, below: str = "attempts") -> Path:
    folder = root / below / CELL / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    return folder


def test_only_what_began_and_has_no_result_is_lost(tmp_path: Path) -> None:
    left, finished = begun(tmp_path, "b1"), begun(tmp_path, "b2")
    (finished / "result.json").write_text("{}")
    assert tries.lose(tmp_path, CELL, "the job ended") == 1
    assert tries.lost(tmp_path, left) == ["the job ended"]
    assert tries.lost(tmp_path, finished) == []
    assert tries.lose(tmp_path, CELL, "again") == 0


def test_lost_tries_count_since_the_last_result(tmp_path: Path) -> None:
    for number, words in enumerate(("old", None, "first", "second")):
        folder = begun(tmp_path, f"b1.{number}", "superseded")
        if words is None:
            (folder / "result.json").write_text("{}")
        else:
            (folder / "lost.json").write_text(tries.Lost(reason=words).model_dump_json())
    begun(tmp_path, "b1.10", "superseded")  # the user stopped this one
    assert tries.lost(tmp_path, begun(tmp_path, "b1")) == ["first", "second"]
