"""`python -m bench.launch.slurm.node CONFIG ARGUMENTS...`: the `accelerate launch` of one node, as a task of srun.
`... SPEC FOLDER COMMAND...`: a script's own command there, in that folder; see `RENDEZVOUS`.

The first node chooses the port at which all launches meet. The launch ends with its task, when bench closes the spool
folder, and when the job is over: a node that has lost its slurmd is not told so by Slurm. It beats, because Slurm may
take minutes to miss a node.
"""

import math
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from bench.launch.attempt_files import launch_command
from bench.launch.ports import free_port
from bench.launch.supervised import supervised
from bench.launch.watch import POLL_S
from bench.store import jobs, spool
from bench.store.jobs import JobFolder
from bench.store.spool import NodeBeat, Rendezvous

MEET_WITHIN_S = 120.0
LOOK_EVERY_S = 1.0


RENDEZVOUS = ("node_rank", "main_address", "main_port")
"""Placeholders of a script's command that only a node can fill."""


def main(config_file: Path, arguments: list[str]) -> int:
    """
    Args:
        config_file: in the folder where the nodes meet: for `accelerate launch`, or the spec of a script's attempt.
    """
    folder, number = config_file.parent, os.environ["SLURM_NODEID"]
    meeting = _meeting(folder, first=number == "0")
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    os.environ |= {spool.NODE: name, spool.MAIN_ADDRESS: meeting.address}
    _set_variables(meeting.address)
    scratch = folder / f"torchelastic{number}"
    if config_file.suffix == ".json":
        runs_in, *words = arguments
        said = zip(RENDEZVOUS, (number, meeting.address, str(meeting.port)), strict=True)
        for placeholder, value in said:
            words = [word.replace(f"{{{placeholder}}}", value) for word in words]
        spec = spool.read(config_file, spool.Spec)  # none where command.sh runs it by hand
        command = supervised(words, runs_in, spec.attempt.cell.memory_limit_bytes if spec else None)
    else:
        machine = ["--machine_rank", number, "--main_process_ip", meeting.address]
        command = supervised(
            launch_command(
                arguments,
                python=sys.executable,
                config_file=config_file,
                log_dir=scratch,
                port=meeting.port,
                machine=machine,
            )
        )
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    job = jobs.this_job()
    try:
        beats, looked_s = 0, -math.inf
        while (code := process.poll()) is None:
            time.sleep(POLL_S)
            if time.monotonic() - looked_s > LOOK_EVERY_S:
                looked_s, beats = time.monotonic(), beats + 1
                with suppress(OSError):
                    spool.write(spool.node_file(folder, int(number)), NodeBeat(name=name, number=beats))
                if _must_end(folder, job):
                    process.terminate()
                    process.wait()
                    return 0
        return 128 - code if code < 0 else code
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def _must_end(folder: Path, job: JobFolder | None) -> bool:
    with suppress(OSError):  # a file system may be away for a moment
        return spool.is_closed(folder) or (job is not None and job.is_over())
    return False


def _set_variables(address: str) -> None:
    """gloo would take the interface of the host's name, which may be none. On a CPU, srun drops an empty
    CUDA_VISIBLE_DEVICES: torch built for CUDA would then ask CUDA for its devices, and its rank server could not
    fork."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(address))


def _meeting(folder: Path, *, first: bool) -> Rendezvous:
    job, step = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    file = folder / f"meeting{job}.{step}.json"  # the user may have an attempt run again into the same folder
    if first:
        meeting = Rendezvous(
            address=_own_address(os.environ["SLURM_LAUNCH_NODE_IPADDR"]), port=free_port(everywhere=True)
        )
        spool.write(file, meeting)
        return meeting
    deadline = time.monotonic() + MEET_WITHIN_S
    while (found := spool.read(file, Rendezvous)) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"the first node did not write {file} within {MEET_WITHIN_S:g} s: do all nodes share it?")
        time.sleep(POLL_S)
    return found


def _own_address(other: str) -> str:
    """The address of this node with which it reaches ``other``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        return str(probe.getsockname()[0])


def _interface(address: str) -> str:
    """The network interface from which this node reaches ``address``."""
    own = _own_address(address)
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(one.address == own for one in addresses)), "lo")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
