"""What runs the measurements: the devices that decide the matrix, and the full record for the report."""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from bench import cgroup, gpus
from bench.bounds import AtLeastOne, Count
from bench.cell import Device, Frozen
from bench.units import UNKNOWN

LIBRARIES = ("torch", "accelerate", "deepspeed", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_THREADS = re.compile(r"\d+(,\d+)*")
_ALLOCATOR = re.compile(r"(\w+:([A-Za-z]{1,20}|[\d.]+|\[[\d:,>]+\])(,|$))+")
_UNREADABLE = "unreadable"
"""Stands for a setting that is none: what else was put there, such as a password, is not for a record."""


class Hardware(Frozen):
    """What expansion needs to know of this machine; found without initialising CUDA and without torch."""

    device: Device
    """``cuda`` when the driver reports a GPU."""
    devices: Count
    """Number of GPUs; 0 on a CPU."""
    cores: AtLeastOne
    """CPU cores that this process may use: by its affinity, and by what its control group grants."""
    memory_bytes: AtLeastOne
    """Memory of one GPU; on a CPU of the whole host, or what the control group leaves of it."""


class StatedHardware(Frozen):
    """What the source of imported figures says of its hardware."""

    device: Device
    devices: Count
    """Number of GPUs; one a rank unless the source says otherwise."""
    memory_bytes: AtLeastOne | None
    """Memory of one GPU."""


class Machine(Frozen):
    """Where a result comes from. Holds no host name, no user and nothing of the environment but named settings.

    null is unknown: of imported figures, what their source does not say.
    """

    hardware: Hardware | StatedHardware
    accelerators: tuple[str, ...]
    """Name of each GPU."""
    driver: str | None
    cpu: str | None
    system: str | None
    python: str | None
    libraries: dict[str, str]
    """Version of each library that was found."""
    bench: str | None
    git_commit: str | None
    """Commit of the folder that bench was run in."""
    git_dirty: bool | None
    allocator: str | None
    """The CUDA allocator's setting in force."""
    threads: dict[str, str]
    """OMP_NUM_THREADS and the like, where the user has set them; each rank's own count stands in its result."""

    def unlike(self, other: "Machine") -> list[str]:
        """The fields in which two machines differ so that their results must not stand in one run."""
        fields = ("hardware", "accelerators", "driver", "cpu", "libraries", "allocator", "threads")
        return [
            f"{name}: {_words(ours)} against {_words(theirs)}"
            for name in fields
            if (ours := getattr(self, name)) != (theirs := getattr(other, name))
            and not (name == "hardware" and _alike(self.hardware, other.hardware))
        ]


def _words(value: object) -> str:
    match value:
        case Hardware() | StatedHardware():
            named = value.model_dump(mode="json")
            return ", ".join(f"{name.replace('_', ' ')} {UNKNOWN if it is None else it}" for name, it in named.items())
        case dict():
            return ", ".join(f"{name} {it}" for name, it in value.items()) or "none"
        case tuple():
            return ", ".join(map(str, value)) or "none"
    return UNKNOWN if value is None else str(value)


def _alike(one: Hardware | StatedHardware, other: Hardware | StatedHardware) -> bool:
    """The same but for a little memory: the kernel's own share moves with each update."""
    if not (isinstance(one, Hardware) and isinstance(other, Hardware)):
        return False
    close = abs(one.memory_bytes - other.memory_bytes) <= 0.02 * one.memory_bytes
    return close and one.model_copy(update={"memory_bytes": other.memory_bytes}) == other


def compiler() -> str:
    """The program that torch builds C++ extensions with: `get_cxx_compiler` in ``torch.utils.cpp_extension``."""
    named = os.environ.get("CXX", "c++")
    try:
        return next(iter(shlex.split(named)), "c++")
    except ValueError:  # an open quote: no program is called so
        return named


def detect(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Hardware:
    """The hardware as bench will use it: GPUs that the driver reports and CUDA_VISIBLE_DEVICES does not hide."""
    shown = gpus.visible(environment)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(cores, cgroup.cores(root) or cores)
    if shown:
        memory_bytes = min(gpu.memory_bytes for gpu in shown)
        return Hardware(device="cuda", devices=len(shown), cores=cores, memory_bytes=memory_bytes)
    return Hardware(device="cpu", devices=0, cores=cores, memory_bytes=host_bytes(root))


def host_bytes(root: Path = Path("/")) -> int:
    """Memory of the whole host, or what the control group leaves of it."""
    return min(int(psutil.virtual_memory().total), cgroup.memory_bytes(root) or sys.maxsize)


def record(
    hardware: Hardware, environment: Mapping[str, str] = os.environ, added: Mapping[str, str] = MappingProxyType({})
) -> Machine:
    """The full record of this machine.

    Args:
        environment: the user's.
        added: what bench adds to it for every launch.
    """
    launch = {**environment, **added}
    allocator = launch.get("PYTORCH_ALLOC_CONF") or launch.get("PYTORCH_CUDA_ALLOC_CONF")
    commit = _git("rev-parse", "HEAD")
    return Machine(
        hardware=hardware,
        accelerators=tuple(gpu.name for gpu in gpus.visible(environment)),
        driver=gpus.driver(),
        cpu=_cpu_model(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        libraries=libraries(),
        bench=importlib.metadata.version("training-bench"),
        git_commit=commit,
        git_dirty=None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
        allocator=_setting(allocator, _ALLOCATOR) if allocator and hardware.device == "cuda" else None,
        threads={name: _setting(environment[name], _THREADS) for name in THREADS if name in environment},
    )


def _setting(text: str, shape: re.Pattern[str]) -> str:
    return text if shape.fullmatch(text) else _UNREADABLE


def notes(machine: Machine) -> list[str]:
    """What the user should know of this machine before measuring."""
    said = [] if machine.allocator is None else [f"CUDA allocator: {machine.allocator}"]
    if machine.hardware.device == "cpu":
        said.append("no GPU: ranks run on the CPU over gloo; compare figures within this machine only")
    return said


def libraries() -> dict[str, str]:
    """Installed version of each of LIBRARIES; one that is not installed is left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
