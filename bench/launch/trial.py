"""Tries the devices in processes of their own, as ranks use them, for `bench doctor`."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.launch.environment import added_environment, launch_environment
from bench.launch.leashed import Leashed
from bench.launch.watch import POLL_S
from bench.records.machine import Hardware

TIMEOUT_S = 300.0
"""For imports from a cold file cache, and for NCCL's start."""


class Trial(NamedTuple):
    """The result of a product in bf16 on each device, and of its sum over all of them."""

    torch_cuda: str | None
    """The CUDA version that torch is built for; None for a build without CUDA, or if torch does not say."""
    error: str | None
    """What went wrong on the first rank that failed; None if nothing did."""


def trial(hardware: Hardware, user: Mapping[str, str]) -> Trial:
    """Try every device, each in a rank of its own.

    Args:
        user: the environment that bench was started with.
    """
    ranks = max(1, hardware.devices)
    environment = launch_environment(user, added_environment(ranks, hardware, user), Path(sys.executable).parent)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = []
        for rank in range(ranks):
            arguments = [hardware.device, str(rank), str(ranks), f"{folder}/meeting"]
            command = [sys.executable, "-P", "-m", "bench.runner.trial", *arguments]
            running.append(Leashed(command, Path(folder, f"rank{rank}.log"), environment))
            stack.callback(running[-1].kill)
        codes = _wait(running)
        said = [_said(one) for one in running]
    failed = next((rank for rank, code in enumerate(codes) if code), None)
    if failed is None and None in codes:
        return Trial(said[0].torch_cuda, f"rank {codes.index(None)} does not end")
    if failed is None:
        return said[0]
    error = said[failed].error or f"rank {failed} ended with exit code {codes[failed]}"
    return Trial(said[failed].torch_cuda, error)


def _wait(running: list[Leashed]) -> list[int | None]:
    """The exit codes once all have ended or one has failed; None for those that still run."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        codes = [one.process.poll() for one in running]
        if None not in codes or any(codes) or time.monotonic() > deadline:
            return codes
        time.sleep(POLL_S)


def _said(one: Leashed) -> Trial:
    """The last line of a rank's output, or Nones without one."""
    last = next(iter(one.output().strip().splitlines()[-1:]), "")
    try:
        return Trial(**json.loads(last))
    except (ValueError, TypeError):
        return Trial(None, last or None)
