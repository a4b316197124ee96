"""The executor that runs the user's own script, anew for each attempt."""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench import processes
from bench.launch.environment import added_environment, launch_environment
from bench.launch.executor import Context, LaunchResult
from bench.launch.leashed import Leashed
from bench.launch.watch import FIRST_STEP_S, Limits, OnBeat, Watch, exit_codes
from bench.records.cell import Attempt, Cell
from bench.records.machine import Hardware
from bench.records.phases import Stage
from bench.records.script import Script, ScriptEnd
from bench.store import spool
from bench.store.beats import Beat
from bench.store.spool import Spec

LOG = "script.log"
RESULT = "script.json"
"""What ``{out}`` names, in the attempt's folder."""
OUTPUT = "output"
"""What ``{output_dir}`` names, in the attempt's folder."""
OF_TRAINER = "train_results.json"
"""What a Trainer's `save_metrics` writes into its ``--output_dir``."""
TAIL_BYTES = 32_000
"""How much of the log's end is searched for the cause: the summary of a launcher alone may have thousands."""


class ScriptLaunch:
    """Each attempt in a new process of the script."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._script: Leashed | None = None

    def prepare(self, cell: Cell) -> None:
        """Nothing: every attempt starts its own processes."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        assert spec is not None
        assert isinstance(spec.attempt, Attempt)
        added = script_environment(cell, self.context.hardware)
        spool.write_text(folder / "command.sh", _by_hand(spec.attempt, folder, added, self.context.folder))
        self._script = script = Leashed(
            script_command(spec.attempt, folder),
            folder / LOG,
            launch_environment(os.environ, added, Path(sys.executable).parent),
            self.context.folder,
            cell.memory_limit_bytes,
        )
        watch, cancelled = Silence(folder, limits, on_beat), None
        try:
            while (code := script.process.poll()) is None and cancelled is None:
                cancelled = watch.pause()
        finally:
            self.close()
        limited = cell.memory_limit_bytes is not None
        end = _end(code, spool.end_of(folder / LOG, TAIL_BYTES), cancelled, limited=limited)
        return LaunchResult(ranks=[], isolation="script", script=end)

    def close(self) -> None:
        if self._script is not None:
            self._script.kill()
            self._script = None


class Silence(Watch):
    """Takes output, and any growth of a file in the attempt's folder, for progress: a script sends no beats."""

    def __init__(self, folder: Path, limits: Limits, on_beat: OnBeat) -> None:
        super().__init__(folder, 0, limits, on_beat)
        self._sizes: dict[Path, int] = {}

    def _look(self, now: float) -> None:
        sizes = {}
        for folder, _, names in os.walk(self.folder):  # rglob raises when the script removes a folder meanwhile
            for name in names:
                with suppress(OSError):  # or a file
                    file = Path(folder, name)
                    sizes[file] = file.stat().st_size
        if sizes != self._sizes:
            self._sizes, self._moved_s = sizes, now
        self.on_beat(Beat(phase=Stage.MEASURE, step=0, steps=0))

    def _patience_s(self) -> float:
        return self.limits.hang_after_s or FIRST_STEP_S


def result_file(script: Script, folder: Path) -> Path:
    """Where a script leaves its figures."""
    return folder / RESULT if script.uses("out") else folder / OUTPUT / OF_TRAINER


def script_environment(cell: Cell, hardware: Hardware) -> dict[str, str]:
    """The variables that bench adds to a script's environment."""
    added = added_environment(cell.ranks_per_node, hardware, os.environ)
    # Without it, each of several processes on a CPU takes itself for the only one: its launch config cannot say so.
    return {**added, "ACCELERATE_USE_CPU": "true"} if hardware.device == "cpu" else added


def script_command(attempt: Attempt, folder: Path | str, out: str = RESULT, output_dir: str = OUTPUT) -> list[str]:
    """The command of an attempt, each placeholder replaced.

    Args:
        folder: of the attempt's files.
        out: the file in it that the script writes its result to.
        output_dir: the folder in it for files that the script names itself.
    """
    cell = attempt.cell
    assert cell.script is not None
    return cell.script.filled(
        {
            **cell.options,
            **attempt.measure.model_dump(),
            "backend": cell.backend,
            "batch": attempt.batch_per_rank,
            "batch_global": attempt.batch_global,
            "mixed_precision": cell.mixed_precision,
            "num_processes": cell.num_processes,
            "accelerate_config": f"{folder}/accelerate.yaml",
            "out": f"{folder}/{out}",
            "output_dir": f"{folder}/{output_dir}",
        }
    )


def _by_hand(attempt: Attempt, folder: Path, added: Mapping[str, str], runs_in: str) -> str:
    lines = [
        "#!/bin/sh",
        "# Runs this attempt by hand. Its result goes to by_hand.json, beside this file.",
        "set -eu",
        f"cd {shlex.quote(runs_in)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in added.items()),
        "exec " + shlex.join(script_command(attempt, folder, "by_hand.json", "by_hand")),
    ]
    return "\n".join(lines) + "\n"


def _end(code: int | None, log: str, cancelled: str | None, *, limited: bool) -> ScriptEnd:
    """How the script ended. Where a launcher's log blames a rank, that counts, and not the launcher's exit code."""
    if cancelled is not None or not code:
        return ScriptEnd(how=None, cancelled=cancelled, limited=limited, log=log)
    rank, blamed = next(iter(exit_codes(log).items()), (None, code))
    number = -blamed if blamed < 0 else blamed - 128  # a shell's exit code for a signal
    signal = processes.signal_name(number) if 0 < number <= 64 else None
    how = f"killed by {signal}" if signal else f"exit code {blamed}"
    return ScriptEnd(how=how, signal=signal, rank=rank, limited=limited, log=log)
