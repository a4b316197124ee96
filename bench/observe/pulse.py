"""A thread beside a script's training: how far its collectives are, and its stacks when bench asks for them."""

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch.distributed as dist

from ..records.call_site import Frame, site
from .beats import BeatFile
from .files import RankFiles, write
from .flight import collectives, issued

EVERY_S = 0.5
NEWEST = 200
"""Collectives in a stuck rank's answer."""
STACK_BYTES = 2**20
"""Of the thread. A limit of memory counts it whole, 8 MiB by default."""
_LIBRARIES = (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), "<")


def beside(files: RankFiles, trained_by: int) -> None:
    """Start the thread. Unlike the training, it also runs while a collective waits."""
    usual = threading.stack_size(STACK_BYTES)
    threading.Thread(target=_run, args=(files, trained_by), name="bench-pulse", daemon=True).start()
    threading.stack_size(usual)


def _run(files: RankFiles, trained_by: int) -> None:
    while True:
        time.sleep(EVERY_S)
        if files.left or not files.is_ours:
            return
        files.beat.collective(issued() if dist.is_available() else 0)
        if (files.folder / "diagnose").exists():
            record = stuck(files.rank, files.beat, trained_by, script_site)
            write(files.folder / f"rank{files.rank}.stuck.json", record)
            return


def stuck(
    rank: int, beat: BeatFile, trained_by: int, place: Callable[[Sequence[Frame]], str], log_tail: str = ""
) -> dict[str, Any]:
    """The fields of `bench.records.hang.Stuck`.

    Args:
        trained_by: the thread that trains.
        place: in the code, of frames, innermost first.
    """
    stage, step, steps = beat.at
    running = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in running.items()
        if ident != threading.get_ident()
    ]
    return {
        "rank": rank,
        "phase": stage,
        "step": step,
        "steps": steps,
        "place": place(list(frames(traceback.walk_stack(running[trained_by])))),
        "stacks": "\n".join(stacks)[-20_000:],
        "collectives": tuple(collectives(NEWEST, place)),
        "log_tail": log_tail,
    }


def frames(walked: Iterable[tuple[FrameType, int]]) -> Iterator[Frame]:
    """In the flight recorder's form."""
    for frame, line in walked:
        yield Frame(frame.f_code.co_name, frame.f_code.co_filename, line)


def script_site(frames: Sequence[Frame]) -> str:
    """The innermost function of the script's own code, or else of any."""
    return site([frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames)
