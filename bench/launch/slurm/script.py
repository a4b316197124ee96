"""The script of a job, as text."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bench.records.slurm import BEGAN, Slurm

_SPECIAL = re.compile(r"[%\\\x00-\x1f\x7f]")
"""In a job's output file, Slurm replaces %, and a backslash stops that."""


def request_of(text: str | None) -> str | None:
    """What a script asks for, without when that was."""
    return None if text is None else re.sub(rf"^export {BEGAN}=.*\n", "", text, flags=re.MULTILINE)


def job_name(root: Path) -> str:
    """The name of all jobs of one run folder, by which bench finds them again, however its path is written."""
    root = root.resolve()
    short = re.sub(r"[^A-Za-z0-9._-]", "_", root.name)[:40]
    return f"bench-{short}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def misreads(root: Path) -> bool:
    """Whether Slurm, or the script, would read the path of a run folder as something else."""
    return _SPECIAL.search(str(root)) is not None


def options_of(text: str) -> list[str]:
    """What a script asks for, as options of sbatch's command line."""
    lines = (line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH "))
    return [word for line in lines for word in shlex.split(line)]


def script(
    asked: Slurm,
    nodes: int,
    name: str,
    root: Path,
    *,
    python: str,
    folder: Path,
    arguments: Sequence[str],
    began: str | None = None,
) -> str:
    """What sbatch is given. It works by hand, too.

    Args:
        name: of the job.
        root: the run folder, absolute.
        python: the interpreter, which must have the same path on the nodes.
        folder: where bench runs, for a workload to be found.
        arguments: of `bench` inside the job.
        began: see `BEGAN`; None: it need not be known.
    """
    options = [
        f"--job-name={name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--no-requeue",  # bench itself asks for another job, with another id
        *(["--exclusive", "--mem=0"] if asked.exclusive else []),
        *([] if asked.gpus_per_node is None else [f"--gpus-per-node={asked.gpus_per_node}"]),
        *(
            f"--{option}={value}"
            for option in ("partition", "account", "qos", "constraint", "time")
            if (value := getattr(asked, option)) is not None
        ),
        *asked.sbatch,
    ]
    guard = [python, "-P", "-m", "bench.launch.slurm.guard", str(root)]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        "",
        "# Measures in this job what the run folder does not have yet. Submit it again to go on. Run folder:",
        f"# {root}",
        *(["set -e  # a line that fails ends the job", *asked.prologue, "set +e"] if asked.prologue else []),
        *([] if began is None else [f"export {BEGAN}={began}"]),
        f"cd {shlex.quote(str(folder))} || exit 2",
        f"exec {shlex.join([*guard, *arguments])}",
    ]
    return "\n".join(lines) + "\n"
