"""A rank's log: the first and the last megabyte of its output, however much it writes.

The output goes through a pipe to this file, run as a program. A thread of the rank could not write the last output of a
killed rank to disk, and a fork would hold the rank's memory. It imports nothing slow.
"""

import contextlib
import fcntl
import io
import os
import select
import sys
import time
from pathlib import Path

HEAD_BYTES = TAIL_BYTES = 2**20
CHUNK_BYTES = 2**20
"""Also the size of the pipe: a rank can write while the program writes."""
REWRITE_S = 0.25
"""The last megabyte is rewritten in place, at most this often."""
LOOK_S = 1.0
"""How often the program checks whether its rank has ended, when another process holds the pipe."""


def send_output_to(path: Path) -> None:
    """Send all further output of this process, also of C++ libraries, to ``path``."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipe, output = os.pipe()
    with contextlib.suppress(OSError):  # the user's pipes already have the maximum size
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getpid())],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, pipe, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,  # a kill of the rank's group spares the program, which then empties the pipe
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in (pipe, output, log):
        os.close(descriptor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing


class Log:
    """The output so far; the file holds its beginning and its end."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._total_bytes = 0
        self._tail = bytearray()
        self.stale = False
        """Whether the file lacks the newest bytes."""

    def take(self, chunk: bytes) -> None:
        head = chunk[: max(0, HEAD_BYTES - self._total_bytes)]
        self._write(head, self._total_bytes)
        self._total_bytes += len(chunk)
        self._tail += chunk[len(head) :]
        del self._tail[:-TAIL_BYTES]
        self.stale = bool(self._tail)

    def write_tail(self) -> None:
        left_out = self._total_bytes - HEAD_BYTES - len(self._tail)
        # A fixed width, so that the file never shrinks.
        gap = b"\n[%15d bytes of output are left out here]\n" % left_out if left_out > 0 else b""
        self._write(gap + self._tail, HEAD_BYTES)
        self.stale = False

    def _write(self, content: bytes, offset: int) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop the rank
            os.pwrite(self._file, content, offset)


def keep(pipe: int, log: Log, rank: int) -> None:
    """Log what comes through the pipe until it is closed, or the process ``rank`` has ended and the pipe is empty."""
    next_s = 0.0
    while True:
        wait_s = max(0.0, next_s - time.monotonic()) if log.stale else LOOK_S
        if select.select([pipe], [], [], wait_s)[0]:
            chunk = os.read(pipe, CHUNK_BYTES)
            if not chunk:
                break
            log.take(chunk)
        elif not log.stale and os.getppid() != rank:
            break
        if log.stale and time.monotonic() >= next_s:
            log.write_tail()
            next_s = time.monotonic() + REWRITE_S
    if log.stale:
        log.write_tail()


if __name__ == "__main__":
    keep(0, Log(1), int(sys.argv[1]))
