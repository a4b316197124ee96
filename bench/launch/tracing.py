"""Starts the process that traces programs, so that bench itself imports no torch."""

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.launch.environment import launch_environment
from bench.launch.leashed import Leashed
from bench.launch.watch import POLL_S
from bench.records.program import Program
from bench.store import programs, spool
from bench.store.programs import NotTraced, ProgramRequest, ProgramRequests

Traced = dict[str, Program | NotTraced]


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
        environment = launch_environment(os.environ, added, Path(sys.executable).parent)
        child = Leashed([sys.executable, "-P", "-m", "bench.runner.programs", name], folder / "log", environment)
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
        last = next(iter(child.output().strip().splitlines()[-1:]), "no message")
    why = f"the tracing process ended with exit code {child.process.returncode}: {last}"
    died = NotTraced(reason=why if ended else f"it took more than {patience_s:g} s")
    return {request.key: died for request in requests} | found
