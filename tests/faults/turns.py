"""A toy of three turns: a quick cell, one that dwells in each of its phases, and a quick one again.

The one that dwells starts a process in a session of its own, and never ends it.
"""

import subprocess
import time
from typing import Any, ClassVar

from toy import Toy, ToyConfig

SLOW = 2


class TurnsConfig(ToyConfig):
    turn: int = 1


class Turns(Toy):
    Config: ClassVar = TurnsConfig

    def __init__(self, config: TurnsConfig) -> None:
        slow = config.turn == SLOW
        super().__init__(config.model_copy(update={"sleep_s": 0.1 if slow else 0.0}))
        self._build_s = 1.5 if slow else 0.0

    def build(self) -> Any:
        if self._build_s:
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(self._build_s)
        return super().build()
