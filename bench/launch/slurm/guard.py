"""`python -m bench.launch.slurm.guard RUN ARGUMENTS...`: runs `bench ARGUMENTS` in a job, and ends it with the job.

It keeps the job's folder: see bench/store/jobs.py. If a node loses its slurmd, Slurm gives the job up and leaves its
processes alone; the guard then learns it from the file in which another bench noted how the job ended, or asks Slurm.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from bench.launch.slurm import client
from bench.launch.supervised import supervised
from bench.records.slurm import JOB
from bench.store import jobs
from bench.store.jobs import End

BEAT_S = 1.0
ASK_EVERY_S = 60.0


def main(root: Path, arguments: list[str]) -> int:
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        print("bench: this runs inside of a Slurm job: submit the script with sbatch", file=sys.stderr)  # noqa: T201
        return 2
    job = jobs.of_run(root, number)
    if job.job_end() is None:
        job.begin()
    os.environ[JOB] = str(job.folder)
    bench = supervised([sys.executable, "-P", "-m", "bench.cli", *arguments])
    print(f"bench: the output is in {job.log}", flush=True)  # noqa: T201
    with job.log.open("ab") as log:
        process = subprocess.Popen(bench, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    ended: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, _: ended.append(number))
    over = Event()
    Thread(target=_ask, args=(number, over), daemon=True).start()
    beats = 0
    try:
        while (code := process.poll()) is None and not ended and not over.is_set():
            with suppress(OSError):  # a file system may be away for a moment
                job.beat(beats)
                if job.job_end() is not None:
                    break
            beats += 1
            time.sleep(BEAT_S)
    finally:
        process.terminate()
        process.wait()
    code = code if code is not None else -(ended[0] if ended else signal.SIGTERM)
    job.set_end(End(exit_code=code))
    return code if code >= 0 else 128 - code


def _ask(number: str, over: Event) -> None:
    """Wait until Slurm says that the job is over; no answer says nothing. An answer may take longer than others wait
    for a beat."""
    while not over.is_set():
        time.sleep(ASK_EVERY_S)
        with suppress(client.ControllerUnavailable, client.RequestRejected):
            seen = client.look([number]).get(number)
            if seen is not None and not seen.living:
                over.set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
