"""A thread beside the training: reports progress twice a second, and the rank's stacks when bench asks."""

import faulthandler
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.diagnosis.call_site import site
from bench.records.hang import Stuck
from bench.runner import recorder
from bench.store import spool
from bench.store.beats import BeatFile

EVERY_S = 0.5
SILENT_S = 20.0
"""If this thread has not run for so long, faulthandler writes the stacks without the interpreter."""
NEWEST = 200
"""Collectives in a stuck rank's answer."""


@contextmanager
def pulse(folder: Path, rank: int, beat: BeatFile) -> Iterator[None]:
    """Inside the context, `rank<N>.beat` holds the number of the newest collective, and the rank answers a file called
    `diagnose` in ``folder`` with `rank<N>.stuck.json`.

    This thread runs while the rank waits in a collective or sleeps, but not while native code holds the interpreter.
    Then the watchdog thread of `faulthandler` writes the stacks to `rank<N>.stacks`.
    """
    ended = threading.Event()
    trained_by = threading.get_ident()
    with (folder / f"rank{rank}.stacks").open("w") as stacks:

        def run() -> None:
            answered = False
            while not ended.wait(EVERY_S):
                faulthandler.dump_traceback_later(SILENT_S, file=stacks)
                beat.collective(recorder.last_number())
                if not answered and spool.diagnosis_asked(folder):
                    spool.write(spool.stuck_file(folder, rank), _stuck(folder, rank, beat, trained_by))
                    answered = True
            faulthandler.cancel_dump_traceback_later()

        faulthandler.enable(file=stacks)  # writes the stacks on a fatal signal too
        # Start the watchdog before a memory limit is set: its own stack counts as memory of the process.
        faulthandler.dump_traceback_later(SILENT_S, file=stacks)
        thread = threading.Thread(target=run, name="bench-pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            faulthandler.disable()
            ended.set()
            thread.join(timeout=EVERY_S)


def _stuck(folder: Path, rank: int, beat: BeatFile, trained_by: int) -> Stuck:
    stage, step, steps = beat.at
    running = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in running.items()
        if ident != threading.get_ident()
    ]
    return Stuck(
        rank=rank,
        phase=stage,
        step=step,
        steps=steps,
        place=site(list(recorder.frames(traceback.walk_stack(running[trained_by])))),
        stacks="\n".join(stacks)[-20_000:],
        collectives=recorder.collectives(NEWEST),
        log_tail=spool.last_words(folder, rank),
    )
