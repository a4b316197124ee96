"""Starts the processes of the torch side that run no attempt, so that bench itself imports no torch."""

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from bench.launch.environment import added_environment, launch_environment
from bench.launch.supervised import Supervised
from bench.launch.watch import POLL_S
from bench.records.calibration import Rates
from bench.records.machine import Hardware
from bench.records.program import Program
from bench.store import programs, spool
from bench.store.programs import NotTraced, ProgramRequest, ProgramRequests

LIMIT_S = 300.0
"""For imports from a cold file cache, NCCL's start, and measurements of seconds."""
Traced = dict[str, Program | NotTraced]


def _started(
    module: str, arguments: Sequence[str], log: Path, added: Mapping[str, str], user: Mapping[str, str] = os.environ
) -> Supervised:
    """A process of `bench.runner`, which the caller has to end."""
    command = [sys.executable, "-P", "-m", f"bench.runner.{module}", *arguments]
    return Supervised(command, log, launch_environment(user, added))


def measured_rates() -> Rates | str:
    """The rates of this machine's CPU, in about 20 seconds; or why they could not be measured."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "rates.json")
        added = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        child = _started("rates", [str(file)], Path(name, "log"), added)
        try:
            with suppress(TimeoutExpired):
                child.process.wait(LIMIT_S)
        finally:
            child.kill()
        return spool.read(file, Rates) or child.last_line() or "no message"


def traced(
    requests: Sequence[ProgramRequest],
    workload_folder: str | None,
    state: Path,
    finished: Callable[[Program | NotTraced], object],
    *,
    patience_s: float = math.inf,
) -> Traced:
    """The programs by key: those that ``state`` has, and the others traced now and kept there.

    Args:
        finished: called for each that is traced now.
        patience_s: for one program; the process ends after it, and those that are missing are not traced.
    """
    unique = {request.key: request for request in requests}
    found: Traced = {key: known for key in unique if (known := programs.find(state, key)) is not None}
    if missing := [request for key, request in unique.items() if key not in found]:
        found |= _trace(missing, workload_folder, state, finished, patience_s)
    return found


def _trace(
    requests: Sequence[ProgramRequest],
    workload_folder: str | None,
    state: Path,
    finished: Callable[[Program | NotTraced], object],
    patience_s: float,
) -> Traced:
    found: Traced = {}
    spoke_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = ProgramRequests(requests=tuple(requests), workload_folder=workload_folder)
        spool.write(folder / "requests.json", asked)
        added = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        child = _started("programs", [name], folder / "log", added)
        try:
            while len(found) < len(requests):
                ended = child.process.poll() is not None
                for request in (one for one in requests if one.key not in found):
                    if (answer := programs.answer(folder, request.key)) is None:
                        continue
                    found[request.key], spoke_s = answer, time.monotonic()
                    if isinstance(answer, Program):
                        programs.keep(state, request.key, answer)
                    finished(answer)
                if ended or time.monotonic() > spoke_s + patience_s:
                    break
                time.sleep(POLL_S)
        finally:
            child.kill()
        last = child.last_line() or "no message"
    why = f"the tracing process ended with exit code {child.process.returncode}: {last}"
    died = NotTraced(reason=why if ended else f"it took more than {patience_s:g} s")
    return {request.key: died for request in requests} | found


class Trial(NamedTuple):
    """The result of a product in bf16 on each device, and of its sum over all of them."""

    torch_cuda: str | None
    """The CUDA version that torch is built for; None for a build without CUDA, or if torch does not say."""
    error: str | None
    """What went wrong on the first rank that failed; None if nothing did."""


def trial(hardware: Hardware, user: Mapping[str, str]) -> Trial:
    """Try every device, each in a rank of its own. ``user``: the environment that bench was started with."""
    ranks = max(1, hardware.devices)
    added = added_environment(ranks, hardware, user)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = []
        for rank in range(ranks):
            arguments = [hardware.device, str(rank), str(ranks), f"{folder}/meeting"]
            running.append(_started("trial", arguments, Path(folder, f"rank{rank}.log"), added, user))
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


def _wait(running: list[Supervised]) -> list[int | None]:
    """The exit codes once all have ended or one has failed; None for those that still run."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        codes = [one.process.poll() for one in running]
        if None not in codes or any(codes) or time.monotonic() > deadline:
            return codes
        time.sleep(POLL_S)


def _said(one: Supervised) -> Trial:
    """The last line of a rank's output, or Nones without one."""
    last = one.last_line()
    try:
        return Trial(**json.loads(last or ""))
    except (ValueError, TypeError):
        return Trial(None, last)
