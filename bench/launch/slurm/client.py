"""Slurm's own commands, and what they say. No shell is involved."""

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bench.launch.slurm.script import options_of

TIMEOUT_S = 60.0
"""squeue itself gives up after about 18 s without a controller."""
MEASURES = ("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING")
HELD = ("RESV_DEL_HOLD", "REQUEUE_HOLD", "REQUEUED")
LIVING = ("PENDING", "CONFIGURING", *MEASURES, "COMPLETING", "STAGE_OUT", *HELD)
"""States of a job that is not over; a requeued one waits again."""
NEVER = {
    "PartitionConfig": "the partition has no such nodes, or too few of them",
    "PartitionNodeLimit": "more nodes than the partition gives to a job",
    "PartitionTimeLimit": "a longer time limit than the partition's",
    "BadConstraints": "no node has these features",
    "InvalidAccount": "the account does not exist, or you are not in it",
    "InvalidQOS": "the QOS does not exist",
    "AccountNotAllowed": "the partition does not take this account",
    "QOSNotAllowed": "this QOS is not allowed here",
    "AssocMaxWallDurationPerJobLimit": "a longer time limit than your association's",
    "AssocMaxNodePerJobLimit": "more nodes than your association may use in a job",
    "QOSMaxWallDurationPerJobLimit": "a longer time limit than the QOS's",
    "QOSMaxNodePerJobLimit": "more nodes than the QOS gives to a job",
    "QOSMinNode": "fewer nodes than the QOS asks for",
    "QOSMaxGRESPerJob": "more GPUs than the QOS gives to a job",
    "QOSMaxGRESPerNode": "more GPUs on a node than the QOS gives to a job",
    "QOSMinGRES": "fewer GPUs than the QOS asks for",
    "QOSMaxCpuPerJobLimit": "more cores than the QOS gives to a job",
    "QOSMaxCpuPerNode": "more cores on a node than the QOS gives to a job",
    "QOSMinCpuNotSatisfied": "fewer cores than the QOS asks for",
    "QOSMaxMemoryPerJob": "more memory than the QOS gives to a job",
    "QOSMaxMemoryPerNode": "more memory on a node than the QOS gives to a job",
    "AssocMaxGRESPerJob": "more GPUs than your association may use in a job",
    "AssocMaxGRESPerNode": "more GPUs on a node than your association may use",
    "AssocMaxCpuPerJobLimit": "more cores than your association may use in a job",
    "AssocMaxCpuPerNode": "more cores on a node than your association may use",
    "AssocMaxMemPerJob": "more memory than your association may use in a job",
    "AssocMaxMemPerNode": "more memory on a node than your association may use",
    "MaxMemPerLimit": "more memory than a job may have",
    "DependencyNeverSatisfied": "the job that it depends on did not end as it has to",
    "ReservationDeleted": "the reservation does not exist any more",
    "ReservationInvalid": "the reservation does not exist, or you may not use it",
}
"""Reasons with which a job waits forever, unless somebody changes the job or the cluster."""
NODES_AWAY = ("PartitionConfig", "PartitionNodeLimit", "BadConstraints")
"""Those of them with which a job also waits while nodes are down or drained."""
_MISLEADS = re.compile(
    r"(SQUEUE|SCANCEL|SACCT)_"  # would hide jobs
    r"|SLURM_TIME_FORMAT$"
    r"|(SBATCH|SLURM)_CLUSTERS$|SBATCH_(ARRAY_INX|WAIT)$"  # would take the job elsewhere, or make several of it
    r"|SLURM_MEM_PER_"  # of another job: in this one, srun would refuse it beside the job's own
)
"""The user's variables that change what Slurm's commands do here."""
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class RequestRejected(Exception):
    """Slurm said no."""


class ControllerUnavailable(Exception):
    """Slurm did not answer; that says nothing of any job."""


@dataclass(frozen=True)
class JobStatus:
    """A job as Slurm describes it."""

    state: str
    reason: str = ""
    nodes: str = ""
    left_s: float | None = None
    """Until its time limit; None without one, or before it runs."""

    @property
    def living(self) -> bool:
        return self.state in LIVING


def submit(script: Path, output: Path) -> str:
    """Submit a job; returns its id.

    Args:
        output: where Slurm writes the job's output.

    Raises:
        RequestRejected: the request can never run, or Slurm takes no job from this user.
        ControllerUnavailable: no controller answers.
    """
    # On the command line they win over the user's variables (SBATCH_TIMELIMIT), which win over the script.
    asked = options_of(script.read_text())
    done = _run(["sbatch", "--parsable", f"--output={output}", *asked, str(script)])
    if done.returncode == 0:
        if (found := re.search(r"^(\d+)(;.*)?$", done.stdout.strip(), re.MULTILINE)) is None:
            raise RequestRejected(f"sbatch named no job: {done.stdout.strip()!r}")
        return found[1]
    words = _words(done.stderr)
    if re.search(
        r"Unable to contact|timed out|Connection refused|Communication|controller|Message \w+ failure|Zero Bytes",
        words,
    ):
        raise ControllerUnavailable(words)
    raise RequestRejected(words)


def look(jobs: Sequence[str]) -> dict[str, JobStatus]:
    """The jobs that Slurm still knows, by id, in one call.

    Raises:
        ControllerUnavailable: no controller answers.
    """
    if not jobs:
        return {}
    done = _run(["squeue", "-a", "-t", "all", "-h", "-j", ",".join(jobs), "-o", "%i|%T|%r|%N|%L|%e"])
    if done.returncode and "Invalid job id" not in done.stderr:
        raise ControllerUnavailable(_words(done.stderr))
    found = {}
    for line in done.stdout.splitlines():
        job, state, reason, nodes, left, end = line.strip().split("|", 5)
        found[job] = JobStatus(state, "" if reason == "None" else reason, nodes, _left_s(state, left, end))
    if unknown := [job for job in jobs if job not in found]:
        found |= _from_accounts(unknown)
    return found


def nodes_are_away(job: str) -> bool:
    """Whether nodes of the job's partition are out of service at the moment; False if Slurm does not say."""
    with suppress(ControllerUnavailable, RequestRejected):
        partition = _run(["squeue", "-a", "-h", "-j", job, "-o", "%P"]).stdout.strip()
        states = _run(["sinfo", "-a", "-h", "-N", "-p", partition, "-o", "%T"]).stdout.split() if partition else []
        return any(state.startswith(("down", "drain", "fail", "maint", "reboot", "unk")) for state in states)
    return False


def _from_accounts(jobs: Sequence[str]) -> dict[str, JobStatus]:
    """What the accounting database knows; nothing on a cluster without one."""
    try:
        done = _run(["sacct", "-n", "-X", "-P", "-j", ",".join(jobs), "-o", "JobID,State"])
    except (ControllerUnavailable, RequestRejected):  # or sacct is not installed
        return {}
    pairs = (line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    return {job: JobStatus(state.split()[0]) for job, state in pairs if state} if done.returncode == 0 else {}


def living(name: str) -> list[str]:
    """Ids of this user's jobs of this name that wait or run, the oldest first.

    Raises:
        ControllerUnavailable: no controller answers.
    """
    done = _run(["squeue", "-a", "-h", "-u", str(os.getuid()), "-n", name, "-o", "%i"])
    if done.returncode:
        raise ControllerUnavailable(_words(done.stderr))
    return sorted(done.stdout.split(), key=lambda job: [int(part) for part in re.findall(r"\d+", job)])


def cancel(jobs: Sequence[str]) -> None:
    """Have Slurm end jobs; nothing for those that are over.

    Raises:
        ControllerUnavailable: no controller answers.
        RequestRejected: they are somebody else's.
    """
    if not jobs:
        return
    done = _run(["scancel", *jobs])
    if done.returncode and "Invalid job id" not in done.stderr:
        words = _words(done.stderr)
        raise RequestRejected(words) if "denied" in words else ControllerUnavailable(words)


def _left_s(state: str, left: str, end: str) -> float | None:
    """By the time limit, which is in minutes, and by the end that Slurm has set: whichever is earlier."""
    known = [] if (by_limit := seconds(left)) is None else [by_limit]
    with suppress(ValueError):  # N/A
        known.append((datetime.fromisoformat(end) - datetime.now()).total_seconds())
    return min(known, default=None) if state == "RUNNING" else None


def seconds(left: str) -> float | None:
    """``1-02:03:04``, ``02:03:04`` or ``3:04``; None for the words UNLIMITED, NOT_SET and INVALID."""
    found = _TIME.fullmatch(left.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if _MISLEADS.match(name) is None}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=kept)
    except subprocess.TimeoutExpired as error:
        raise ControllerUnavailable(f"{command[0]} did not answer within {TIMEOUT_S:g} s") from error
    except FileNotFoundError as error:
        raise RequestRejected(f"{command[0]} is not installed on this machine") from error


def _words(errors: str) -> str:
    """``Invalid partition name specified``: the message without the names of programs."""
    lines = [re.sub(r"^(\w+: )?(error: |fatal: )?", "", line).strip() for line in errors.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^Batch job submission failed: ", "", line) for line in lines) or "no reason given"
