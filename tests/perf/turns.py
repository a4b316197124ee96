"""The bundled policy in ranks that stop before each measured step, until SIGCONT gives them their turn."""

import os
import signal

from bench.model.workload import Pi07
from bench.observe.beats import BeatFile
from bench.records.phases import Stage

beat = BeatFile.__call__


class InTurns(Pi07): ...


def beat_and_stop(self: BeatFile, stage: str, step: int = 0, steps: int = 0) -> None:
    beat(self, stage, step, steps)
    if stage is Stage.MEASURE:  # outside of what is timed
        os.kill(os.getpid(), signal.SIGSTOP)


BeatFile.__call__ = beat_and_stop  # type: ignore[method-assign]
