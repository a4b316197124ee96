"""The log of a rank: its beginning and its end, whatever it writes and however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.runner import log
from bench.runner.log import HEAD_BYTES, TAIL_BYTES

START = "import os, subprocess, sys; from pathlib import Path; from bench.runner import log\n"
START += "log.send_output_to(Path(sys.argv[1])); print('first words')\n"
LEFT_OUT = b"\n[%15d bytes of output are left out here]\n"


def rank(file: Path, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START + code, str(file)], stdin=subprocess.PIPE)


def keepers(file: Path) -> list[psutil.Process]:
    """Processes that hold the log open."""
    found = []
    for process in psutil.process_iter():
        try:
            found += [process for opened in process.open_files() if opened.path == str(file)]
        except psutil.Error:
            continue
    return found


def wait_until_kept(file: Path) -> bytes:
    deadline = time.monotonic() + 10
    while keepers(file):
        assert time.monotonic() < deadline, "the keeper did not end"
        time.sleep(0.02)
    return file.read_bytes()


def test_what_is_said_is_on_disk_while_the_rank_runs(tmp_path: Path) -> None:
    file = tmp_path / "rank0.log"
    process = rank(file, "sys.stdin.read()")
    deadline = time.monotonic() + 10
    while not file.exists() or file.read_bytes() != b"first words\n":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.communicate()
    assert wait_until_kept(file) == b"first words\n"


def test_a_flood_is_bounded_and_the_last_words_of_a_killed_rank_are_there(tmp_path: Path) -> None:
    file = tmp_path / "rank0.log"
    flood = "for _ in range(64): os.write(1, b'x' * 2**20)\n"
    process = rank(file, flood + r"os.write(2, b'\xff last words'); os.kill(os.getpid(), 9)")
    assert process.wait() == -signal.SIGKILL
    kept, words = wait_until_kept(file), b"\xff last words"
    said = LEFT_OUT % (62 * 2**20 + len(b"first words\n") + len(words))
    assert kept[:HEAD_BYTES] == b"first words\n".ljust(HEAD_BYTES, b"x")
    assert kept[HEAD_BYTES:] == said + words.rjust(TAIL_BYTES, b"x")


def test_the_keeper_does_not_wait_for_what_a_rank_has_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "rank0.log"
    process = rank(file, "print(subprocess.Popen(['sleep', '60']).pid)")
    process.communicate()
    left = psutil.Process(int(wait_until_kept(file).split()[-1]))
    assert left.name() == "sleep"
    left.kill()


def test_a_disk_that_is_full_stops_no_rank() -> None:
    process = rank(Path("/dev/full"), "os.write(1, b'x' * 2**24)")
    process.communicate(timeout=20)
    assert process.returncode == 0


@given(chunks=st.lists(st.binary(max_size=40), max_size=12), look=st.sets(st.integers(0, 11)))
def test_the_file_holds_the_beginning_and_the_end(chunks: list[bytes], look: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "HEAD_BYTES", 16)
        patch.setattr(log, "TAIL_BYTES", 16)
        file = os.memfd_create("log")
        kept = log.Log(file)
        for number, chunk in enumerate(chunks):
            kept.take(chunk)
            if number in look:
                kept.write_tail()
        kept.write_tail()
        written = os.pread(file, 10**6, 0)
        os.close(file)
    said = b"".join(chunks)
    left_out = len(said) - 32
    assert written == (said if left_out <= 0 else said[:16] + LEFT_OUT % left_out + said[-16:])
