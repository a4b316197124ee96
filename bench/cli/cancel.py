"""`bench cancel`: ends the jobs of a run."""

from pathlib import Path
from typing import Annotated

import typer

from bench.errors import InputError


def cancel(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder: reports/<name>.")],
) -> None:
    """End the jobs of a run on a cluster.

    What is measured stays. The same `bench run` resumes.
    """
    from bench.launch.slurm.client import ControllerUnavailable, RequestRejected, living, look
    from bench.launch.slurm.job_end import end_jobs
    from bench.launch.slurm.script import job_name
    from bench.store import jobs
    from bench.units import counted

    if not run.is_dir():
        raise InputError("there is no such folder", where=str(run), allowed="the folder of a run")
    root = run.absolute()
    try:
        unended = [number for number in jobs.open_ones(root) if jobs.of_run(root, number).end() is None]
        known = [number for number, seen in look(unended).items() if seen.living]
        numbers = list(dict.fromkeys([*living(job_name(root)), *known]))  # a moved folder has another name
        end_jobs(root, numbers)
    except (ControllerUnavailable, RequestRejected) as error:
        raise InputError(f"Slurm: {error}", where=str(run)) from error
    words = f"{counted(len(numbers), 'job')} cancelled: {', '.join(numbers)}" if numbers else "no job waits or runs"
    typer.echo(f"{words}; results: {run}")
