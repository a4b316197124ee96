"""A real Slurm of two nodes on this machine: its daemons run in the foreground, as children of this process."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2")

CONFIG = """\
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
EnforcePartLimits={enforce}
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout_s}
KillWait=2
MinJobAge=300
GresTypes=gpu
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1} CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2} CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=n1 MaxNodes=1 MaxTime=10 State=UP
"""


def missing() -> str | None:
    """Why no Slurm can run here; None if it can."""
    if os.geteuid() != 0:
        return "the daemons of a test cluster need root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(lacking)} (`make test-slurm` installs them)" if lacking else None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Cluster:
    """A running Slurm in ``folder``; `environment` makes its commands talk to it.

    Args:
        enforce: EnforcePartLimits: ``ALL`` refuses what can never run at submission, ``NO`` lets it wait for ever.
        node_timeout_s: how long a node may be silent; Slurm's own default is 300.
    """

    def __init__(self, folder: Path, *, enforce: str = "ALL", node_timeout_s: int = 10) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": _path()}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir(parents=True)
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        port, n1, n2 = _free_ports(3)
        config = CONFIG.format(folder=folder, port=port, n1=n1, n2=n2, enforce=enforce, node_timeout_s=node_timeout_s)
        (folder / "slurm.conf").write_text(config)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        for number in range(2):
            os.mknod(folder / f"gpu{number}", 0o600 | 0o020000, os.makedev(1, 3))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for parent in (folder, *folder.parents):  # munge refuses a socket that its users cannot reach
            with contextlib.suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o111)
        self._start(
            "munged",
            *("munged", "-F", f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munge.pid"),
            *(f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed", "--num-threads=10"),
        )
        _wait_for((folder / "munge.sock").exists)
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        self._wait_until_idle()

    def __call__(self, *command: str, check: bool = True) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=120
        )
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start_controller(self, *options: str) -> None:
        self._start("slurmctld", "slurmctld", "-D", *options)

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def daemon(self, name: str) -> subprocess.Popen[bytes]:
        """``slurmctld``, or the slurmd of ``n1`` or ``n2``."""
        return self._daemons[name]

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to this cluster and is none of its daemons."""
        daemons = {daemon.pid for daemon in self._daemons.values()} | {os.getpid()}
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid in daemons or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def jobs(self) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self("squeue", "-h", "-o", "%i").split()

    def quiet(self) -> None:
        """End all jobs, and wait until both nodes are free."""
        if jobs := self.jobs():
            self("scancel", *jobs, check=False)
        _wait_for(lambda: not self.jobs(), 60)

    def resume_nodes(self) -> None:
        """Give a node that is down, or was, back to the jobs."""
        for node in NODES:
            self("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self._wait_until_idle()

    def stop(self) -> None:
        """End everything; nothing of this cluster runs afterwards."""
        with contextlib.suppress(Exception):
            self.quiet()
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGCONT)
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _wait_until_idle(self) -> None:
        _wait_for(lambda: self("sinfo", "-h", "-r", "-t", "idle", "-o", "%D", check=False).strip() == "2", 60)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", *command],  # they end with the tests
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def _free_ports(number: int) -> list[int]:
    """Outside the range from which the kernel gives ports to others, so that a daemon finds its own free again."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < number:
        port = random.randrange(lowest - 10_000, lowest)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


def _wait_for(condition: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
