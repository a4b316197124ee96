"""From the stamps of ranks to the account of their attempt."""

from pathlib import Path

import pytest

from bench.observe.beats import BeatFile
from bench.records.phases import Stage
from bench.store.beats import Entry
from bench.sweep.account import account_in, account_of

STAGES = (Stage.START, Stage.JOIN, Stage.SETUP, Stage.WARMUP, Stage.MEASURE, Stage.DONE)


def rank(*at_s: float) -> list[Entry]:
    """A rank that entered the first stages then."""
    return [Entry(stage, at) for stage, at in zip(STAGES, at_s, strict=False)]


def test_the_parts_sum_to_the_wall_time() -> None:
    account = account_of([rank(1, 2, 4, 7, 11, 16)], began_s=0, ended_s=17, read_s=20)
    assert account.parts_s == {
        "launch": 1, "start": 1, "join": 2, "setup": 3, "warmup": 4, "measure": 5, "done": 1, "end": 3,
    }  # fmt: skip
    assert account.accounted_s == 20


def test_a_stage_lasts_until_the_last_rank_has_left_it() -> None:
    """Rank 1 builds for longer; rank 0 waits for it in its first warm-up step."""
    quick, slow = rank(1, 2, 3, 4, 12), rank(1, 2, 3, 10, 12)
    account = account_of([quick, slow], began_s=0, ended_s=15, read_s=15)
    assert account.parts_s == {"launch": 1, "start": 1, "join": 1, "setup": 7, "warmup": 2, "measure": 3, "end": 0}


def test_a_stage_that_a_rank_never_entered_counts_in_the_one_before() -> None:
    """Rank 1 hangs in its warm-up, and rank 0 waits for it in the measured steps until bench ends both."""
    account = account_of([rank(1, 2, 3, 4, 5), rank(1, 2, 3, 6)], began_s=0, ended_s=66, read_s=67)
    assert account.parts_s == {"launch": 1, "start": 1, "join": 1, "setup": 3, "warmup": 60, "end": 1}
    assert account.accounted_s == 67


def test_the_last_stage_is_not_accounted_for_when_nobody_saw_its_end() -> None:
    account = account_of([rank(1, 2, 3)], began_s=0, ended_s=None, read_s=60)
    assert account.parts_s == {"launch": 1, "start": 1, "join": 1}


def test_a_stage_that_is_entered_twice_is_one_part() -> None:
    stages = (Stage.SETUP, Stage.COMPILE, Stage.SETUP)
    entries = [Entry(stage, at) for stage, at in zip(stages, (1.0, 2.0, 5.0), strict=True)]
    account = account_of([entries], began_s=0, ended_s=9, read_s=9)
    assert account.parts_s == {"launch": 1, "setup": 5, "compile": 3, "end": 0}


@pytest.mark.parametrize(
    ("entries", "ended_s"),
    [
        ([rank(1, 2), []], 5.0),  # a rank died before its first stage
        ([rank(3, 2)], 5.0),
        ([rank(-1, 2)], 5.0),
        ([rank(1, 6)], 5.0),
        ([rank(1, 11)], None),
        ([rank(1, float("nan"), 2)], 5.0),
    ],
)
def test_without_stamps_in_order_there_is_no_account(entries: list[list[Entry]], ended_s: float | None) -> None:
    assert account_of(entries, began_s=0, ended_s=ended_s, read_s=10) is None


def test_stamps_are_read_from_the_folder(tmp_path: Path) -> None:
    assert account_in(tmp_path, 1, 0.0, None, 1.0) is None
    for number in range(2):
        beat = BeatFile(tmp_path, number)
        beat(Stage.START)
        beat(Stage.MEASURE, 1, 2)
    found = account_in(tmp_path, 2, 0.0, 1e17, 1e17)
    assert list(found.parts_s) == ["launch", "start", "measure", "end"]
