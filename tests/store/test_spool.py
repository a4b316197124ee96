"""The files between processes: whole when they are visible, and nothing when they are torn."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from examples import rank

from bench.observe.beats import BeatFile
from bench.records.rank_outcome import RankError, RankOk
from bench.store import spool
from bench.store.spool import Request, ServerState

ERROR = RankError(rank=1, phase="forward", error="ValueError: planted", traceback="", at=1.0)


WHOLE = ERROR.model_dump_json()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WHOLE[:-1].encode(),
        b"null",
        b"[]",
        b"\x00\xff",
        b'{"kind": "unheard-of"}',
        json.dumps(json.loads(WHOLE) | {"surprise": 1}).encode(),
        json.dumps(json.loads(WHOLE) | {"at": "noon"}).encode(),
    ],
)
def test_a_rank_whose_file_is_torn_or_foreign_ended_without_a_result(tmp_path: Path, content: bytes) -> None:
    spool.rank_file(tmp_path, 0).write_bytes(content)
    spool.write(spool.rank_file(tmp_path, 1), ERROR)
    BeatFile(tmp_path, 0)("measure", 3, 5)
    torn, whole = spool.read_ranks(tmp_path, 2)
    assert whole == ERROR
    assert (torn.rank, torn.phase, torn.traceback) == (0, "measure", "")
    assert torn.error.startswith("rank0.json cannot be read: ")


def test_ranks_come_in_order_and_only_those_of_the_world(tmp_path: Path) -> None:
    assert spool.read_ranks(tmp_path, 2) == []
    for number in (2, 0, 1):
        spool.write(spool.rank_file(tmp_path, number), rank(number))
    assert spool.read_ranks(tmp_path, 2) == [rank(0), rank(1)]


def test_records_survive_and_a_missing_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    assert spool.read(file, Request) is None
    request = Request(number=3, folder="/a b/é", port=29500)
    spool.write(file, request)
    assert spool.read(file, Request) == request
    spool.write(file, request.model_copy(update={"cancelled": "no result within 8 s"}))
    assert spool.read(file, Request) == Request(number=3, folder="/a b/é", port=29500, cancelled="no result within 8 s")


def test_writing_leaves_the_file_alone_in_its_folder(tmp_path: Path) -> None:
    for finished in range(3):
        spool.write(tmp_path / "server0.json", ServerState(rank=0, pid=1, finished=finished))
    assert [file.name for file in tmp_path.iterdir()] == ["server0.json"]


def test_a_file_may_have_the_longest_name_that_a_disk_takes(tmp_path: Path) -> None:
    file = tmp_path / ("a" * 251 + ".csv")
    spool.write_text(file, "1")
    assert file.read_text() == "1"


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    records = [rank(0, (value,) * 20_000) for value in (0.1, 0.25)]
    spool.write(file, records[0])
    seen: set[float] = set()
    torn: list[Exception] = []
    writing = True

    def read() -> None:
        while writing:
            try:
                found = spool.read(file, RankOk)
                assert len(found.step_times_s) == 20_000
                assert len(set(found.step_times_s)) == 1
                seen.add(found.step_times_s[0])
            except Exception as error:
                torn.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        spool.write(file, records[turn % 2])
    writing = False
    reader.join()
    assert not torn
    assert seen == {0.1, 0.25}


def test_a_file_that_was_missing_a_moment_ago_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_folder(folder: Path, flags: int) -> int:
        """As on NFS: what another node has written is seen once its folder is opened."""
        opened.append(str(folder))
        if folder == tmp_path and len(opened) == 2:
            (tmp_path / "closed").write_text("")
        return os.dup(0)

    assert not spool.is_closed(tmp_path)
    monkeypatch.setattr(spool.os, "open", open_folder)
    assert spool.is_closed(tmp_path)
    assert opened == [str(tmp_path.parent), str(tmp_path)]


def test_a_file_that_another_node_has_just_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alive"
    file.write_text("now")
    failures, read = [errno.ESTALE], Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if failures:
            raise OSError(failures.pop(), "planted")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert spool.content(file) == b"now"
    failures = [errno.EIO]
    with pytest.raises(OSError, match="planted"):
        spool.content(file)
