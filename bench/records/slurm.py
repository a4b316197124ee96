"""What a run asks Slurm for: the section ``slurm`` of a matrix."""

import shlex
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from bench.records.base import Frozen

JOB = "BENCH_JOB"
"""Variable of all processes of a job: the folder of its files."""
BEGAN = "BENCH_BEGAN"
"""Variable of a job that measures again, or within a budget: when that was asked for, ISO 8601. The job after it does
not begin anew."""
_WORD = r"^[^\s\"'\\#]+$"
_TIME = r"^([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}$"

_OURS = (
    "--job-name",
    "-J",
    "--array",
    "-a",
    "--requeue",
    "--output",
    "-o",
    "--clusters",
    "-M",
    "--test-only",
    "--wait",
    "-W",
)
"""Options with which bench would not find its jobs again, take several for one, or none, or wait for their end."""


def _minutes(value: object) -> object:
    """A number is one of minutes."""
    return str(value) if type(value) is int else value


def _directive(line: str) -> str:
    if "\n" in line or not line.startswith("-"):
        raise ValueError("one option of sbatch, such as --mem=64G")
    try:
        shlex.split(line)
    except ValueError as error:
        raise ValueError(f"a quote without an end: {line}") from error
    option = line.partition("=")[0].split()[0] if line.startswith("--") else line[:2]
    if option in ("-N", "--nodes"):  # else the ranks would be spread over other nodes than the job has
        raise ValueError(f"the field launch.nodes sets the nodes: leave out {line}")
    if any(name.startswith(option) for name in _OURS):  # sbatch takes --arr, too, and -a1-4
        raise ValueError(
            "bench itself sets the name, the output, the cluster and the restarts of its jobs, and follows them: leave"
            f" out {line}"
        )
    return line


Word = Annotated[str, Field(pattern=_WORD, max_length=200)]
Time = Annotated[
    str,
    Field(pattern=_TIME),
    BeforeValidator(_minutes),
    WithJsonSchema({"type": ["string", "integer"], "pattern": _TIME}),
]
Directive = Annotated[str, AfterValidator(_directive), WithJsonSchema({"type": "string", "pattern": "^-[^\\n]*$"})]


class Slurm(Frozen):
    """The job in which `bench run --launcher slurm` measures. What is not given, the cluster decides."""

    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs of each node. null: none are asked for."""
    partition: Word | None = None
    """The job's partition."""
    account: Word | None = None
    """The account that pays for the job."""
    qos: Word | None = None
    """The job's quality of service."""
    constraint: Word | None = None
    """Features that the nodes must have, such as ``a100&ib``."""
    time: Time | None = None
    """Time limit of a job in Slurm's words: minutes, ``HH:MM:SS`` or ``D-HH:MM:SS``. A run that needs longer goes on in
    another job."""
    exclusive: bool = True
    """Whole nodes, with all their memory: what others run beside a measurement disturbs it."""
    sbatch: tuple[Directive, ...] = ()
    """Other options for sbatch, one ``#SBATCH`` line each, such as ``--mem=64G``."""
    prologue: tuple[str, ...] = ()
    """Lines of shell before bench starts on the first node: modules to load, an environment to activate. A line that
    fails ends the job."""
