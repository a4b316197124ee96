"""The files of a scheduler's jobs that measure for a run, below its folder `slurm/`:

script.sh          what was submitted last
<id>.out           what the job wrote before bench started, and the scheduler's own last words
<id>/output.log    the output of bench in the job
<id>/script.sh     what was submitted
<id>/alive         changes every second while the job's guard runs
<id>/.lock         held by the bench that measures in the job
<id>/end.json      how bench ended in the job
<id>/job_end.json     how the job ended, as the scheduler told; who reads it ends what is left of the job
"""

import os
from pathlib import Path

from bench.records.base import Frozen
from bench.records.slurm import JOB
from bench.store import spool

OUT_OF_TIME = 75
"""bench's exit code in a job that ends too soon for another attempt."""


class End(Frozen):
    """How bench ended in a job."""

    exit_code: int
    """Negative for a signal."""


class JobEnd(Frozen):
    """How a job ended."""

    state: str
    """The scheduler's word, such as NODE_FAIL."""
    reason: str | None = None
    asked: bool = False
    """The user had bench cancel it."""


class JobFolder:
    """The folder of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, folder.name
        self.log = folder / "output.log"
        self.script = folder / "script.sh"
        self.scheduler_log = folder.with_name(f"{folder.name}.out")

    def alive(self) -> str | None:
        """What changes while its guard runs; None before it starts."""
        beat = spool.content(self.folder / "alive")
        return None if beat is None else beat.decode()

    def submitted(self) -> str | None:
        """Its script; None if the user submitted it by hand."""
        try:
            return self.script.read_text()
        except OSError:
            return None

    def beat(self, number: int) -> None:
        spool.write_text(self.folder / "alive", f"{number}\n")

    def end(self) -> End | None:
        return spool.read(self.folder / "end.json", End)

    def set_end(self, end: End) -> None:
        spool.write(self.folder / "end.json", end)

    def job_end(self) -> JobEnd | None:
        return spool.read(self.folder / "job_end.json", JobEnd)

    def set_job_end(self, job_end: JobEnd) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        spool.write(self.folder / "job_end.json", job_end)

    def unset_job_end(self) -> None:
        (self.folder / "job_end.json").unlink(missing_ok=True)

    def is_over(self) -> bool:
        """Whether what is left of it must end."""
        return self.job_end() is not None or self.end() is not None

    def begin(self) -> None:
        """bench begins in the job. It may have ended there before, if the user holds the nodes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("end.json", "job_end.json"):
            (self.folder / name).unlink(missing_ok=True)


def of_run(root: Path, job: str) -> JobFolder:
    return JobFolder(root / "slurm" / job)


def open_ones(root: Path) -> list[str]:
    """Ids of the jobs of a run whose end nobody has noted: they may live."""
    folders = (root / "slurm").glob("[0-9]*/")
    return [folder.name for folder in folders if JobFolder(folder).job_end() is None]


def this_job() -> JobFolder | None:
    """The job that this process belongs to."""
    return JobFolder(Path(folder)) if (folder := os.environ.get(JOB)) else None
