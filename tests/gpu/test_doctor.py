"""The first part: what `bench doctor` says of the machine."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from checks import HARDWARE, REHEARSED, needs_device
from harness import ROOT
from nvml import values

from bench.backends import BACKENDS, FAMILIES
from bench.store import spool

Found = Callable[..., None]
OF_DEEPSPEED = {"deepspeed", *(name for name in BACKENDS if FAMILIES[BACKENDS[name].family].package == "deepspeed")}


def doctor() -> dict[str, list[str]]:
    """Its lines, by subject: the mark and the words."""
    command = [sys.executable, "-m", "bench.cli", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = [[line[:7].strip(), line[9:25].strip(), line[25:].strip()] for line in done.stdout.splitlines()]
    return {subject: [mark, words] for mark, subject, words in lines}


@pytest.fixture(scope="module")
def lines() -> dict[str, list[str]]:
    return doctor()


def test_nothing_is_missing(lines: dict[str, list[str]], found: Found) -> None:
    """`bench doctor` finds the device and misses nothing but DeepSpeed."""
    missing = {subject: words for subject, (mark, words) in lines.items() if mark == "missing"}
    found(device=lines["device"][1], driver=lines.get("driver", ["", "none"])[1], missing=", ".join(missing) or "none")
    assert lines["device"][1].startswith(HARDWARE.device)
    assert not {subject: words for subject, words in missing.items() if subject not in OF_DEEPSPEED}
    assert REHEARSED or lines["driver"][0] == "ok"


def test_deepspeed_is_ready(lines: dict[str, list[str]], found: Found) -> None:
    """DeepSpeed is installed, and its backends can run."""
    if lines["deepspeed"][0] == "missing":
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    found(version=lines["deepspeed"][1])
    assert {lines[subject][0] for subject in OF_DEEPSPEED} == {"ok"}


@needs_device("its driver's values")
def test_the_driver_tells(kept: Path, found: Found) -> None:
    """NVML tells clocks, power, energy and both counts of memory, of the device at rest."""
    pynvml.nvmlInit()
    at_rest = values(pynvml.nvmlDeviceGetHandleByIndex(0))
    pynvml.nvmlShutdown()
    spool.write_text(kept / "nvml_at_rest.json", json.dumps(at_rest, indent=1))
    untold = [name for name, value in at_rest.items() if isinstance(value, str)]
    found(
        untold=", ".join(untold) or "none",
        reserved_MiB=(at_rest["memory_v1"]["used"] - at_rest["memory_v2"]["used"]) // 2**20,
        sm_clock=f"{at_rest['sm_clock_mhz']} of {at_rest['sm_clock_max_mhz']} MHz",
        power=f"{at_rest['power_mw'] / 1e3:.0f} of {at_rest['power_limit_mw'] / 1e3:.0f} W",
    )
    assert not {"memory_v2", "sm_clock_mhz", "event_reasons"} & set(untold)
