"""The executor that runs the user's own script, anew for each attempt."""

import json
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench import processes
from bench.launch.attempt_files import srun
from bench.launch.environment import added_environment, launch_environment
from bench.launch.executor import Context, LaunchResult
from bench.launch.ports import free_port
from bench.launch.slurm.node import RENDEZVOUS
from bench.launch.slurm.spread import SpreadLaunch
from bench.launch.supervised import Supervised
from bench.launch.watch import FIRST_STEP_S, Limits, OnBeat, Watch, exit_codes
from bench.records.cell import Attempt, Cell
from bench.records.hang import Stuck
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
END_S = 20.0
"""How long a script's launcher has to end after its ranks have been measured."""
MOST_UNASKED = 64
"""Ranks that are looked for where the matrix says fewer, to say how many there were."""
TAIL_BYTES = 32_000
"""How much of the log's end is searched for the cause: the summary of a launcher alone may have thousands."""


class ScriptLaunch:
    """Each attempt in a new process of the script."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._script: Supervised | None = None

    def prepare(self, cell: Cell) -> None:
        """Nothing: every attempt starts its own processes."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        assert spec is not None
        assert isinstance(spec.attempt, Attempt)
        added = script_environment(cell, self.context.hardware)
        spool.write_text(folder / "command.sh", _by_hand(spec.attempt, folder, added, self.context.folder))
        observed = spec.attempt.cell.script is not None and spec.attempt.cell.script.is_observed
        if observed:
            added |= observing(spec.attempt, folder, self.context.hardware, os.environ)
        try:
            self._script = script = self._started(cell, folder, script_command(spec.attempt, folder), added)
        except OSError as error:  # an argument is too long
            return LaunchResult(ranks=[], isolation="script", script=ScriptEnd(how=f"cannot start: {error.strerror}"))
        watch = (
            Observing(folder, cell.num_processes, limits, on_beat) if observed else OutputWatch(folder, limits, on_beat)
        )
        cancelled, stuck = None, list[Stuck]()
        try:
            while (code := script.process.poll()) is None and cancelled is None and not watch.is_over():
                cancelled = watch.pause()
            if cancelled is not None and observed:
                stuck = watch.diagnose()
        finally:
            self.close()
        limited = cell.memory_limit_bytes is not None
        end = _end(code, spool.end_of(folder / LOG, TAIL_BYTES), cancelled, limited=limited)
        ranks = spool.read_ranks(folder, max(cell.num_processes, MOST_UNASKED)) if observed else []
        return LaunchResult(
            ranks=ranks,
            isolation="script",
            cancelled=cancelled,
            stuck=stuck,
            ended_s=time.monotonic() if observed else None,
            script=end,
        )

    def _started(self, cell: Cell, folder: Path, command: list[str], added: Mapping[str, str]) -> Supervised:
        if cell.num_nodes > 1:
            words = [self.context.folder, *command]
            return SpreadLaunch(cell.num_nodes, folder / "spec.json", folder / LOG, words, added)
        environment = launch_environment(os.environ, added)
        return Supervised(command, folder / LOG, environment, self.context.folder, cell.memory_limit_bytes)

    def close(self) -> None:
        if self._script is not None:
            self._script.kill()
            self._script = None
            self.context.await_memory()


class OutputWatch(Watch):
    """Takes output, and any growth of a file in the attempt's folder, for progress: a script sends no beats."""

    def __init__(self, folder: Path, limits: Limits, on_beat: OnBeat, world_size: int = 0) -> None:
        super().__init__(folder, world_size, limits, on_beat)
        self._sizes: dict[Path, int] = {}

    def is_over(self) -> bool:
        """Whether all is measured, though processes still run."""
        return False

    def _look(self, now: float) -> None:
        self._look_for_output(now)
        self.on_beat(Beat(phase=Stage.MEASURE, step=0, steps=0))

    def _look_for_output(self, now: float) -> None:
        sizes = {}
        for folder, _, names in os.walk(self.folder):  # rglob raises when the script removes a folder meanwhile
            for name in names:
                with suppress(OSError):  # or a file
                    file = Path(folder, name)
                    sizes[file] = file.stat().st_size
        if sizes != self._sizes:
            self._sizes, self._moved_s = sizes, now

    def _patience_s(self) -> float:
        return self.limits.hang_after_s or FIRST_STEP_S


class Observing(OutputWatch):
    """Takes output for progress until the first step, and from then on the beats of the observed ranks."""

    def __init__(self, folder: Path, world_size: int, limits: Limits, on_beat: OnBeat) -> None:
        super().__init__(folder, limits, on_beat, world_size)
        self._done_s: float | None = None

    def is_over(self) -> bool:
        """Ranks end by themselves; what their launcher does after that does not count."""
        return self._done_s is not None and time.monotonic() - self._done_s > END_S

    def _look(self, now: float) -> None:
        if not self._steps:
            self._look_for_output(now)
        Watch._look(self, now)
        if self._done_s is None and all(spool.rank_file(self.folder, rank).exists() for rank in range(self.world_size)):
            self._done_s = now

    def _patience_s(self) -> float:
        return Watch._patience_s(self) if self._steps else super()._patience_s()

    @property
    def _steps(self) -> bool:
        return any(beat.phase in (Stage.WARMUP, Stage.MEASURE, Stage.PHASES) for beat in self._beats.values())


def observing(attempt: Attempt, folder: Path, hardware: Hardware, user: Mapping[str, str]) -> dict[str, str]:
    """The variables that put bench/observe into each Python process of a script.

    Args:
        folder: of the attempt's files.
        user: the environment that bench itself was started with.
    """
    cell, startup = attempt.cell, Path(__file__).parents[1] / "observe" / "startup"
    settings = {
        "folder": str(folder),
        "warmup_steps": attempt.measure.warmup_steps,
        "steps": attempt.measure.steps,
        "phase_steps": attempt.measure.phase_steps,
        "capacity_bytes": cell.memory_limit_bytes or hardware.memory_bytes // cell.ranks_per_node,
    }
    return {
        "BENCH_OBSERVE": json.dumps(settings),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(startup), user.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",  # else it would write into the user's folder
    }


def result_file(script: Script, folder: Path) -> Path:
    """Where a script leaves its figures."""
    if script.is_read_from_log:
        return folder / LOG
    return folder / RESULT if script.uses("out") else folder / OUTPUT / OF_TRAINER


def script_environment(cell: Cell, hardware: Hardware) -> dict[str, str]:
    """The variables that bench adds to a script's environment."""
    added = added_environment(cell.ranks_per_node, hardware, os.environ, nodes=cell.num_nodes)
    if cell.memory_limit_bytes is not None:
        added |= processes.malloc_variables()
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
    alone = ("0", "127.0.0.1", str(free_port()) if cell.script.uses("main_port") else "")
    return cell.script.filled(
        {
            **(
                dict(zip(RENDEZVOUS, alone, strict=True))
                if cell.num_nodes == 1
                else {name: f"{{{name}}}" for name in RENDEZVOUS}
            ),
            "num_nodes": cell.num_nodes,
            "ranks_per_node": cell.ranks_per_node,
            **attempt.options,
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
    script = attempt.cell.script
    seen = script is not None and script.is_observed
    lines = [
        "#!/bin/sh",
        "# Runs this attempt by hand. "
        + ("Nothing observes it." if seen else "Its result goes to by_hand.json, beside this file."),
        "set -eu",
        f"cd {shlex.quote(runs_in)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in added.items()),
        "exec " + _on_nodes(attempt, folder, shlex.join(script_command(attempt, folder, "by_hand.json", "by_hand"))),
    ]
    return "\n".join(lines) + "\n"


def _on_nodes(attempt: Attempt, folder: Path, command: str) -> str:
    if attempt.cell.num_nodes == 1:
        return command
    spec = f'"$(mktemp -d {shlex.quote(f"{folder}/by_hand.XXXX")})/spec.json"'  # all nodes see it
    return f"{shlex.join(srun(attempt.cell.num_nodes))} python -m bench.launch.slurm.node {spec} . {command}"


def _end(code: int | None, log: str, cancelled: str | None, *, limited: bool) -> ScriptEnd:
    """How the script ended. Where a launcher's log blames a rank, that counts, and not the launcher's exit code."""
    if cancelled is not None or not code:
        return ScriptEnd(how=None, cancelled=cancelled, limited=limited, log=log)
    rank, blamed = next(iter(exit_codes(log).items()), (None, code))
    number = -blamed if blamed < 0 else blamed - 128  # a shell's exit code for a signal
    signal = processes.signal_name(number) if 0 < number <= 64 else None
    how = f"killed by {signal}" if signal else f"exit code {blamed}"
    return ScriptEnd(how=how, signal=signal, rank=rank, limited=limited, log=log)
