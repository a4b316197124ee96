"""A thread beside the training: reports progress twice a second, and the rank's stacks when bench asks."""

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.observe import flight
from bench.observe.beats import BeatFile
from bench.observe.pulse import EVERY_S, stuck
from bench.records.call_site import site
from bench.records.hang import Stuck
from bench.store import spool

SILENT_S = 20.0
"""If this thread has not run for so long, faulthandler writes the stacks without the interpreter."""


@contextmanager
def pulse(folder: Path, rank: int, beat: BeatFile) -> Iterator[None]:
    """Inside the context, `rank<N>.beat` counts the collectives of all groups, and the rank answers a file called
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
                beat.collective(flight.issued())
                if not answered and spool.diagnosis_asked(folder):
                    answer = stuck(rank, beat, trained_by, site, spool.last_words(folder, rank))
                    spool.write(spool.stuck_file(folder, rank), Stuck(**answer))
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
