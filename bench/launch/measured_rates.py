"""Starts the process that measures the rates of a CPU, so that bench itself imports no torch."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from bench.launch.environment import launch_environment
from bench.launch.leashed import Leashed
from bench.records.calibration import Rates
from bench.store import spool

LIMIT_S = 300.0


def measured_rates() -> Rates | str:
    """The rates of this machine's CPU, in about 20 seconds; or why they could not be measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        added = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        environment = launch_environment(os.environ, added, Path(sys.executable).parent)
        command = [sys.executable, "-P", "-m", "bench.runner.rates", str(folder / "rates.json")]
        child = Leashed(command, folder / "log", environment)
        try:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(LIMIT_S)
        finally:
            child.kill()
        last = next(iter(child.output().strip().splitlines()[-1:]), "no message")
        return spool.read(folder / "rates.json", Rates) or last
