"""The hardware of this machine: what a matrix depends on, and the full record for the report."""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from bench.machine import cgroup, gpus
from bench.records.machine import LIBRARIES, Hardware, Machine, StatedHardware
from bench.records.precision import COMPUTES_IN

UNTRIED = {"rocm": "GPUs of AMD", "xpu": "GPUs of Intel"}
"""By the beginning of the local label in torch's version."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_THREADS = re.compile(r"\d+(,\d+)*")
_ALLOCATOR = re.compile(r"(\w+:([A-Za-z]{1,20}|[\d.]+|\[[\d:,>]+\])(,|$))+")
_UNREADABLE = "unreadable"
"""Stored instead of a malformed setting, which could be anything, even a password."""


def compiler() -> str:
    """The program with which torch builds C++ extensions: `get_cxx_compiler` in ``torch.utils.cpp_extension``."""
    command = os.environ.get("CXX", "c++")
    try:
        return next(iter(shlex.split(command)), "c++")
    except ValueError:  # an unclosed quote: report it as it is
        return command


def detect(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Hardware:
    """The hardware that bench will use: the GPUs that the driver reports and CUDA_VISIBLE_DEVICES does not hide."""
    shown = gpus.visible(environment)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(cores, cgroup.cores(root) or cores)
    if shown:
        memory_bytes, bf16 = min(gpu.memory_bytes for gpu in shown), all(gpu.bf16 for gpu in shown)
        return Hardware(device="cuda", devices=len(shown), cores=cores, memory_bytes=memory_bytes, bf16=bf16)
    bf16 = multiplies_bf16(_cpu_field("flags", "Features"), environment)
    return Hardware(device="cpu", devices=0, cores=cores, memory_bytes=host_bytes(root), bf16=bf16)


def multiplies_bf16(features: str, environment: Mapping[str, str]) -> bool:
    """Whether oneDNN, which multiplies matrices for torch on a CPU, has bf16 instructions to use.

    Args:
        features: of the CPU, as Linux lists them.
        environment: may limit oneDNN: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
    """
    allowed = environment.get("ONEDNN_MAX_CPU_ISA", environment.get("DNNL_MAX_CPU_ISA", "ALL")).upper()
    limited = allowed not in ("ALL", "DEFAULT") and not re.search("BF16|FP16|AMX|AVX10", allowed)
    return not limited and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(features.split())


def has_own_memory(hardware: Hardware | StatedHardware) -> bool:
    """Whether ranks train in another memory than the host's. A GPU that shares it is reported with all of it."""
    return hardware.device != "cpu" and hardware.memory_bytes != psutil.virtual_memory().total


def host_bytes(root: Path = Path("/")) -> int:
    """Memory of the host, or the limit of the control group."""
    return min(int(psutil.virtual_memory().total), cgroup.memory_bytes(root) or sys.maxsize)


def record(
    hardware: Hardware,
    environment: Mapping[str, str] = os.environ,
    added: Mapping[str, str] = MappingProxyType({}),
    recorded: Mapping[str, str] | None = None,
) -> Machine:
    """The full record of this machine.

    Args:
        environment: the user's environment.
        added: the variables that bench adds for every launch.
        recorded: the variables of the user's environment that results record; by default, not known.
    """
    launch = {**environment, **added}
    allocator = launch.get("PYTORCH_ALLOC_CONF") or launch.get("PYTORCH_CUDA_ALLOC_CONF")
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return Machine(
        hardware=hardware,
        accelerators=tuple(gpu.name for gpu in gpus.visible(environment)),
        power_limits_w=gpus.power_limits_w(environment),
        driver=gpus.driver(environment),
        cpu=_cpu_field("model name") or platform.processor() or platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        libraries=libraries(),
        bench=importlib.metadata.version("training-bench"),
        git_commit=commit,
        git_dirty=None if commit is None or changes is None else bool(changes),
        allocator=_setting(allocator, _ALLOCATOR) if allocator and hardware.device == "cuda" else None,
        threads={name: _setting(environment[name], _THREADS) for name in THREADS if name in environment},
        environment=None if recorded is None else dict(recorded),
    )


def _setting(text: str, shape: re.Pattern[str]) -> str:
    return text if shape.fullmatch(text) else _UNREADABLE


def notes(machine: Machine) -> list[str]:
    """What the user should know about this machine before measuring."""
    notes = [] if machine.allocator is None else [f"CUDA allocator: {machine.allocator}"]
    _, _, build = machine.libraries.get("torch", "").partition("+")
    if other := next((name for name in UNTRIED if build.startswith(name)), None):
        notes.append(
            f"torch is built for {UNTRIED[other]}: nothing of bench has run on one yet, and bench does not detect them"
        )
    if machine.hardware.device == "cpu":
        notes.append("no GPU: ranks run on the CPU over gloo; compare figures within this machine only")
    if isinstance(machine.hardware, Hardware) and not machine.hardware.bf16:
        others = [name for name, dtype in COMPUTES_IN.items() if dtype not in ("bfloat16", "float32")]
        other = f" ({' or '.join(others)} is for such GPUs)" if others and machine.hardware.device == "cuda" else ""
        notes.append(f"no bf16 instructions: mixed_precision is 'no' unless you set it{other}; bf16 is slower here")
    return notes


def libraries() -> dict[str, str]:
    """The version of each installed library of LIBRARIES."""
    versions = {}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _cpu_field(*names: str) -> str:
    """The first of these fields that Linux tells of the CPU; empty where it tells none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
