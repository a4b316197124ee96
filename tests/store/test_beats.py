"""How far a rank is, as bench reads it."""

import time
from pathlib import Path

import pytest

from bench.observe.beats import BeatFile
from bench.records.phases import Stage
from bench.store.beats import Beat, read_beat, read_entries


def test_a_beat_is_read_back_and_replaces_the_one_before(tmp_path: Path) -> None:
    beat = BeatFile(tmp_path, 3)
    assert read_beat(tmp_path, 3) is None
    beat("measure", 1234, 5678)
    assert read_beat(tmp_path, 3) == Beat(phase="measure", step=1234, steps=5678)
    beat("done")
    assert read_beat(tmp_path, 3) == Beat(phase="done", step=0, steps=0)
    assert beat.stage == "done"


def test_a_beat_file_does_not_grow(tmp_path: Path) -> None:
    beat = BeatFile(tmp_path, 0)
    sizes = set()
    for step in (0, 9, 10**6):
        beat("warmup", step, 10**6)
        sizes.add((tmp_path / "rank0.beat").stat().st_size)
    assert len(sizes) == 1


def test_a_rank_stamps_each_stage_once_when_it_enters_it(tmp_path: Path) -> None:
    beat = BeatFile(tmp_path, 2)
    assert read_entries(tmp_path, 2) == []
    before_s = time.monotonic()
    for stage, step in ((Stage.START, 0), (Stage.WARMUP, 0), (Stage.WARMUP, 1), (Stage.DONE, 0)):
        beat(stage, step, 2)
        beat.collective(step)
    entries = read_entries(tmp_path, 2)
    assert [entry.stage for entry in entries] == ["start", "warmup", "done"]
    times_s = [before_s, *(entry.at_s for entry in entries), time.monotonic()]
    assert times_s == sorted(times_s)
    assert read_beat(tmp_path, 2) == Beat(phase="done", step=0, steps=2, collective=0)


@pytest.mark.parametrize("line", [b"lunch 1.0", b"start noon", b"start", b"\xff"])
def test_a_file_with_a_line_that_is_no_stamp_has_no_stamps(tmp_path: Path, line: bytes) -> None:
    BeatFile(tmp_path, 0)(Stage.START)
    with (tmp_path / "rank0.beat").open("ab") as file:
        file.write(line + b"\n")
    assert read_entries(tmp_path, 0) == []


def test_the_beat_of_an_earlier_process_is_forgotten(tmp_path: Path) -> None:
    BeatFile(tmp_path, 0)("measure", 7, 8)
    BeatFile(tmp_path, 0)
    assert read_beat(tmp_path, 0) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"measure 1", b"measure 1 2", b"measure 1 2 3 4", b"\xff\xfe 1 2"])
def test_a_torn_beat_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank0.beat").write_bytes(content)
    assert read_beat(tmp_path, 0) is None
