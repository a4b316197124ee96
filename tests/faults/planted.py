"""Runs of `faulty.Faulty`: a cell for each fault that is planted in one of two real ranks."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from faulty import FLOOD_BYTES, MEASURE
from table import FaultBench, Phase

from bench.records.outcome import Result
from bench.runner.log import HEAD_BYTES, TAIL_BYTES

PHASES: tuple[Phase, ...] = ("set-up", "warm-up", "measuring", "teardown")
Benches = Callable[[str], FaultBench]
Cell = Mapping[str, Any]
MARGIN_S = 5.0
"""How long the other ranks may run after one has failed."""
SAYS = {"flood": "1 GB of output", "not UTF-8": "output that is not UTF-8"}
LEAVES = "a process left behind"
WORDS = {
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "raise": "exception",
    "surrogates": "exception that UTF-8 cannot encode",
    "exit": "exit 0 too early",
    "exit in a thread": "exit 0 in a thread",
    "sys.exit": "sys.exit",
    "allocate": "out of memory",
}


class Planted:
    """A run with one cell per fault and a last one without. It runs beside others until a result is requested."""

    def __init__(
        self,
        bench: FaultBench,
        cells: Sequence[Cell],
        *arguments: str,
        launch: Cell | None = None,
        cgroup: Path | None = None,
        **environment: str,
    ) -> None:
        self.bench = bench
        include = [{"backend": "ddp", "batch": 1, **cell} for cell in [*cells, {"plant": "none"}]]
        matrix = bench.matrix(
            workload={"name": "faulty:Faulty"}, matrix={}, include=include, measure=MEASURE, launch=launch or {}
        )
        process = bench.start("run", matrix, "--out", str(bench.folder / "run"), *arguments, **environment)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))  # it has started nothing yet
        self._reader = threading.Thread(target=process.communicate)  # a full pipe would stop it
        self._reader.start()
        self._process = process

    def exit_code(self) -> int | None:
        self._reader.join(timeout=1500)
        return self._process.poll()

    def result(self, **axes: object) -> Result | None:
        """The result of the cell with these axes; None if the run did not get that far."""
        self.exit_code()
        axes = {"backend": "ddp", **axes}
        found = [result for result in self.bench.results() if axes.items() <= result.axes.items()]
        assert len(found) < 2
        return found[0] if found else None

    def file(self, result: Result, name: str) -> Path:
        return self.bench.folder / "run/attempts" / result.attempt.slug / name

    def ended_together(self, result: Result) -> bool:
        """No rank had to wait for long."""
        first, last = sorted(self.file(result, f"rank{rank}.json").stat().st_mtime for rank in (0, 1))
        return last - first < MARGIN_S


def bounded(log: Path) -> bytes:
    """The log of a flood, after a check of its size."""
    content = log.read_bytes()
    said = b"\n[%15d bytes of output are left out here]\n" % (FLOOD_BYTES - HEAD_BYTES - TAIL_BYTES)
    assert len(content) == HEAD_BYTES + len(said) + TAIL_BYTES
    left_out = int(content[HEAD_BYTES : HEAD_BYTES + len(said)].split(b"bytes")[0].strip(b"\n[ "))
    assert left_out >= FLOOD_BYTES - HEAD_BYTES - TAIL_BYTES
    return content
