"""A workload that is built only when as many Slurm jobs of its run are at work as share it."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from toy import Toy, ToyConfig

PATIENCE_S = 120.0


class SharedConfig(ToyConfig):
    meeting: Path
    """A folder in which each job leaves its number."""
    jobs: int = 2


class Shared(Toy):
    Config: ClassVar = SharedConfig

    def build(self) -> Any:
        meeting, jobs = self.config.meeting, self.config.jobs
        (meeting / os.environ["SLURM_JOB_ID"]).touch()
        deadline = time.monotonic() + PATIENCE_S
        while len(list(meeting.iterdir())) % jobs and time.monotonic() < deadline:
            time.sleep(0.05)
        return super().build()
