"""`bench doctor`: what this machine can run. Imports no torch."""

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import typer

from bench import machine, workloads
from bench.backends import BACKENDS, FAMILIES
from bench.launch.torch_side import trial
from bench.machine import gpus
from bench.matrix.matrix_file import DEFAULT_WORKLOAD
from bench.records.machine import Hardware
from bench.units import UNKNOWN, amount, memory_size

SHARED = Path("/dev/shm")  # noqa: S108  where the kernel keeps shared memory
SHARED_BYTES = 2**30
"""For each rank: some batches of a large sample. A container has 64 MiB unless it is told otherwise."""


@dataclass(frozen=True)
class Finding:
    """One line of `bench doctor`."""

    subject: str
    ok: bool
    words: str


def doctor() -> None:
    """Check what this machine can run and what is missing.

    Lists the devices, the libraries, each backend, and the size of each preset of the bundled workloads. Computes a
    little on each GPU. Exits with 1 when something is missing.
    """
    findings = examine()
    for finding in findings:
        mark = "ok     " if finding.ok else "missing"
        typer.echo(f"{mark}  {finding.subject:<14}  {finding.words}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Everything that doctor prints, in its order."""
    hardware = machine.detect()
    record = machine.record(hardware)
    ranks = hardware.devices or 2
    devices = ", ".join(record.accelerators) or f"no GPU: {record.cpu}, {hardware.cores} cores"
    memory = hardware.memory_bytes if hardware.device == "cuda" else hardware.memory_bytes // ranks
    compiler = _compiler(hardware)
    choose = workloads.load(DEFAULT_WORKLOAD).auto_preset
    preset = choose(hardware.device, memory) if choose else None
    return [
        Finding("bench", True, f"{record.bench or UNKNOWN}, Python {record.python or UNKNOWN}"),
        Finding("device", True, f"{hardware.device}: {devices}"),
        Finding(
            "ranks",
            True,
            f"{ranks} by default, {memory_size(memory)} each; workload {DEFAULT_WORKLOAD} uses preset {preset!r}",
        ),
        *(
            Finding(name, name in record.libraries, record.libraries.get(name, f"not installed: pip install {name}"))
            for name in ("torch", "accelerate", "deepspeed", "transformers")
        ),
        *(_driver(hardware, record.driver) if hardware.device == "cuda" else ()),
        *_shared_memory(hardware, ranks),
        *compiler,
        *(_backend(name, hardware, all(finding.ok for finding in compiler)) for name in BACKENDS),
        *(finding for name in workloads.BUNDLED for finding in _sizes(name)),
    ]


def _sizes(name: str) -> list[Finding]:
    """The number of parameters of each preset and of its parts."""
    kind = workloads.load(name)
    if kind.parameter_counts is None:
        return []
    findings = []
    for preset, fields in kind.presets.items():
        counts = kind.parameter_counts(kind.Config.model_validate(fields))
        layers = {part: count for part, count in counts.items() if part.endswith("_layer")}
        parts = {part: count for part, count in counts.items() if part not in layers}
        words = ", ".join(f"{part} {amount(count)}" for part, count in {**parts, **layers}.items())
        findings.append(Finding(f"{name} {preset}", True, f"{amount(sum(parts.values()))} parameters: {words}"))
    return findings


def _driver(hardware: Hardware, version: str | None) -> list[Finding]:
    """Whether torch can use the driver: each device computes in a process of its own, and all of them reduce."""
    found, newest = trial(hardware, os.environ), gpus.newest_cuda()
    words = f"{version or UNKNOWN}, runs CUDA up to {newest or UNKNOWN}"
    words += f"; torch is built for CUDA {found.torch_cuda}" if found.torch_cuda else ""
    if found.error is None:
        did = "each GPU computed a product in bf16" + (", and all summed it" if hardware.devices > 1 else "")
        return [Finding("driver", True, f"{words}; {did}")]
    if newest and found.torch_cuda and _major(found.torch_cuda) > _major(newest):
        words += f": update the driver, or install torch for CUDA {_major(newest)}, see `bench guide troubleshooting`"
    return [Finding("driver", False, f"{words}. {found.error}")]


def _shared_memory(hardware: Hardware, ranks: int) -> list[Finding]:
    """Whether the loader's workers, which a GPU has by default, can hand over their batches."""
    if hardware.device == "cpu" or not SHARED.is_dir():
        return []
    total = shutil.disk_usage(SHARED).total
    words = f"{memory_size(total)} in {SHARED}, through which workers of the loader hand over batches"
    if total >= ranks * SHARED_BYTES:
        return [Finding("shared memory", True, words)]
    fix = (
        f"{memory_size(ranks * SHARED_BYTES)} needed: start a container with --shm-size,"
        " or set measure.dataloader_workers: 0"
    )
    return [Finding("shared memory", False, f"{words}; {fix}")]


def _major(cuda: str) -> int:
    """Within a major version, the driver of an older CUDA runs a newer one."""
    return int(cuda.partition(".")[0])


def _compiler(hardware: Hardware) -> list[Finding]:
    if hardware.device == "cuda" or importlib.util.find_spec("deepspeed") is None:
        return []
    missing = [tool for tool in (machine.compiler(), "ninja") if shutil.which(tool) is None]
    use = "DeepSpeed compiles a communication helper on a CPU, half a minute or more, once in each environment"
    return [Finding("compiler", not missing, f"{' and '.join(missing)} not found: {use}" if missing else use)]


def _backend(name: str, hardware: Hardware, compiles: bool) -> Finding:
    backend = BACKENDS[name]
    package = FAMILIES[backend.family].package
    if importlib.util.find_spec(package) is None:
        return Finding(name, False, f"needs {package}")
    if backend.family == "deepspeed" and not compiles:
        return Finding(name, False, "needs the compiler above")
    alone = hardware.device == "cuda" and hardware.devices == 1 and backend.family != "single"
    return Finding(name, True, backend.about + ("; with one rank on this machine" if alone else ""))
