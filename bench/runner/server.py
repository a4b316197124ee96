"""A rank server: imports once, never touches the device, and forks a child for every attempt."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

from bench import processes, workloads
from bench.diagnosis.oom_words import end_for_memory
from bench.machine import freed, gpus, oom_kill
from bench.records.phases import Stage
from bench.records.rank_outcome import RankAudited, RankError, RankKilled, RankOk, RankOom, RankWalked
from bench.runner import attempt
from bench.runner.preload import preload
from bench.store import spool
from bench.store.spool import Request, ServerState, Spec

IDLE_POLL_S = 0.05
BUSY_POLL_S = 0.1
"""While a child measures: rare enough not to slow it measurably."""
GRACE_S = 1.5
"""How long a rank may run on after another one failed: time to report its own error."""
HUNG_LOOKS = 40
"""So often in a row, IDLE_POLL_S apart, a forked child that hangs is found asleep."""
HUNG_BUSY_S = 10.0
"""CPU time of one that waits busily."""


class Server:
    """Runs one rank of every attempt requested in a spool folder, until its parent ends it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.finished = 0
        self._unforkable: str | None = None
        self._ended_s: float | None = None
        self._memory = freed.Memory(os.environ, int(os.environ.get("LOCAL_RANK", "0")))
        self._held_bytes = 0

    def serve(self, preloads: Sequence[str], workload_folder: str | None, modules: Sequence[str]) -> None:
        """Import ``preloads`` and the workload's ``modules``; then serve until the parent ends."""
        processes.adopt_orphans()
        preload(preloads)
        workloads.search(workload_folder)
        self._unforkable = _unforkable(started_threads=_imports(modules))
        gc.freeze()  # a child's collector then does not copy the shared pages; to collect first frees almost nothing
        gc.enable()
        self._write_state()
        while True:
            request = spool.read(self.folder / "request.json", Request)
            if request is None or request.number == self.finished or request.cancelled:
                time.sleep(IDLE_POLL_S)
                continue
            self._attempt(request)
            self.finished = request.number
            self._write_state()

    def _write_state(self, child: int | None = None) -> None:
        state = ServerState(
            rank=self.rank,
            pid=os.getpid(),
            child=child,
            finished=self.finished,
            ended_s=self._ended_s,
            unforkable=self._unforkable,
            held_bytes=self._held_bytes,
        )
        spool.write(self.folder / f"server{self.rank}.json", state)

    def _attempt(self, request: Request) -> None:
        folder = Path(request.folder)
        spool.look_across(folder)  # an earlier try of this attempt may have had the name
        kills = oom_kill.counts()
        child = gpus.fork()
        if child == 0:
            self._be_child(request, folder)
        with contextlib.suppress(OSError):  # the child does it too, so that it is done in either order
            os.setpgid(child, child)
        self._write_state(child)
        status, ended_because = self._wait(child, request, folder)
        processes.end_orphans()
        self._ended_s = time.monotonic()
        if not spool.rank_file(folder, self.rank).exists():
            self._report(folder, status, ended_because, kills)
        self._held_bytes = self._memory.wait()  # the next attempt reads its capacity when it starts

    def _be_child(self, request: Request, folder: Path) -> None:
        """Run the attempt in the forked child. Never returns: this copy of the server must not serve."""
        try:
            os.setpgid(0, 0)
            with contextlib.suppress(OSError):
                # When memory runs out, the kernel should kill the child, not the server.
                Path("/proc/self/oom_score_adj").write_text("500")
            processes.die_with_parent()
            os.environ.update(launch_environment(folder / "accelerate.yaml", request.port))
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
            spec = spool.read(folder / "spec.json", Spec)
            assert spec is not None
            attempt.run(spec, folder, self.rank)
        except BaseException as error:
            spool.write(spool.rank_file(folder, self.rank), attempt.failure(error, self.rank, Stage.START))
        finally:
            os._exit(0)

    def _wait(self, child: int, request: Request, folder: Path) -> tuple[int, str | None]:
        """Wait for the child; end it if another rank failed or bench cancels. Returns its status and that reason."""
        peers = [rank for rank in range(self.world_size) if rank != self.rank]
        failed_since: float | None = None
        ended_because: str | None = None
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status, ended_because
            if ended_because is None:
                newest = spool.read(self.folder / "request.json", Request)
                if newest is not None and newest.number == request.number and newest.cancelled:
                    ended_because = newest.cancelled
                elif failed_since is None:
                    if _failed(folder, peers):
                        failed_since = time.monotonic()
                        spool.ask_for_diagnosis(folder)  # its place helps to explain the other's failure
                elif time.monotonic() - failed_since > GRACE_S:
                    ended_because = "another rank had failed"
                if ended_because is not None:
                    os.killpg(child, signal.SIGKILL)
            time.sleep(BUSY_POLL_S)

    def _report(self, folder: Path, status: int, ended_because: str | None, kills: oom_kill.Counts) -> None:
        """Write the outcome of a child that ended without writing its own."""
        now = attempt.now_s()
        signaled = os.WIFSIGNALED(status)
        end = processes.signal_name(os.WTERMSIG(status)) if signaled else os.WEXITSTATUS(status)
        reported: RankOom | RankError | RankKilled
        reported = spool.report_of_end(folder, self.rank, end, now, ended_because)
        log = spool.end_of(folder / f"rank{self.rank}.log", 20_000)
        found = end_for_memory(end, oom_kill.killed_since(kills), log, limited=_limited(folder))
        if found and not (signaled and ended_because):
            reported = RankOom(rank=self.rank, phase=reported.phase, message=found[1], source=found[0], at=now)
        spool.write(spool.rank_file(folder, self.rank), reported)


def _imports(modules: Sequence[str]) -> bool:
    """Import ``modules``. Returns whether they have started threads of Python, which a forked child would lack."""
    before = len(sys._current_frames())
    for module in modules:
        with contextlib.suppress(Exception, SystemExit):  # the attempt reports what is wrong with it
            importlib.import_module(module)
    return len(sys._current_frames()) > before


def _unforkable(*, started_threads: bool) -> str | None:
    """Why a forked child of this process could not train; None if it can. ``started_threads``: see `_imports`.

    Native threads are no reason: BLAS libraries start theirs when they are loaded, and again in a child.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "a module of the workload initializes CUDA when it is imported"
    if _in_a_child(torch.cuda._is_in_bad_fork):  # torch decides that in the child, at the fork
        return "an import had torch ask CUDA for its devices, as it does where they are slices (MIG)"
    if gpus.initialized():
        return "a module other than torch initializes CUDA when it is imported"
    if started_threads:
        return "a module of the workload starts a thread when it is imported"
    if not _in_a_child(_computes):
        return "a module of the workload computes when it is imported"
    return None


def _computes() -> bool:
    """Compute in parallel. libgomp waits forever in a child if its parent had computed in parallel."""
    x = torch.ones(512, 512, requires_grad=True)
    (x @ x).relu().sum().backward()  # type: ignore[no-untyped-call]
    return x.grad is not None


def _in_a_child(check: Callable[[], object]) -> bool:
    """Whether ``check`` is true in a forked child. False if it hangs there: asleep for 2 s, or busy for 10 s."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(1)
    process, looks, before = psutil.Process(child), 0, 0.0
    while looks < HUNG_LOOKS:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(IDLE_POLL_S)
        spent = sum(process.cpu_times()[:2])
        asleep = process.status() == psutil.STATUS_SLEEPING and spent == before
        looks, before = looks + 1 if asleep else 0, spent
        if spent > HUNG_BUSY_S:
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _limited(folder: Path) -> bool:
    spec = spool.read(folder / "spec.json", Spec)
    return spec is not None and spec.device == "cpu" and spec.attempt.cell.memory_limit_bytes is not None


def _failed(folder: Path, ranks: list[int]) -> bool:
    spool.look_across(folder)
    written = [rank for rank in ranks if spool.rank_file(folder, rank).exists()]
    return bool(written) and any(
        outcome.rank in written and not isinstance(outcome, RankOk | RankWalked | RankAudited)
        for outcome in spool.read_ranks(folder, max(written) + 1)
    )


def launch_environment(config_file: Path, port: int) -> dict[str, str]:
    """The variables with which `accelerate launch --config_file` starts a rank, computed by accelerate's own code."""
    flags = ["--config_file", str(config_file), "--main_process_port", "0"]  # a free one, which nothing uses
    flags += ["--machine_rank", os.environ.get("GROUP_RANK", "0")]
    arguments = launch_command_parser().parse_args([*flags, "--module", "bench.runner"])
    arguments, defaults, precision_from_file = _validate_launch_command(arguments)
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if precision_from_file else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(arguments)
    elif arguments.multi_gpu or arguments.use_fsdp:
        environment = prepare_multi_gpu_env(arguments)
    else:
        _, environment = prepare_simple_launcher_cmd_env(arguments)
    if arguments.use_deepspeed or arguments.multi_gpu or arguments.use_fsdp:
        # A single server has no elastic agent that would set these.
        environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", **environment}
    threads = os.environ["OMP_NUM_THREADS"]
    meeting = {"MASTER_ADDR": os.environ.get(spool.MAIN_ADDRESS, "127.0.0.1"), "MASTER_PORT": str(port)}
    return {**environment, "OMP_NUM_THREADS": threads, **meeting}
