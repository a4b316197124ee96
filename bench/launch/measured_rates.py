"""Starts the process that measures the rates of a CPU, so that bench itself imports no torch."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from bench.errors import InputError
from bench.launch.environment import launch_environment
from bench.launch.leashed import Leashed
from bench.records.calibration import Rates
from bench.store import spool

LIMIT_S = 300.0


def measured_rates() -> Rates:
    """The rates of this machine's CPU, in about ten seconds.

    Raises:
        InputError: they could not be measured.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = launch_environment(os.environ, {"CUDA_VISIBLE_DEVICES": ""}, Path(sys.executable).parent)
        command = [sys.executable, "-P", "-m", "bench.runner.rates", str(folder / "rates.json")]
        child = Leashed(command, folder / "log", environment)
        try:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(LIMIT_S)
        finally:
            child.kill()
        found = spool.read(folder / "rates.json", Rates)
        if found is None:
            last = next(iter(child.output().strip().splitlines()[-1:]), "no message")
            raise InputError(f"the rates of the CPU could not be measured: {last}", where="bench calibrate")
    return found
