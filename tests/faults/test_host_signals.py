"""Signals that end bench, a closed output or terminal, a suspended bench, and descendants that die."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
import yaml
from harness import HERE, MARK, wait_for
from moments import Struck
from table import FaultBench, Phase, judge

PHASES: tuple[Phase, ...] = ("start", "set-up", "warm-up", "measuring", "teardown")
SIGNALS = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 129,
    signal.SIGQUIT: -signal.SIGQUIT,
    signal.SIGKILL: -signal.SIGKILL,
}


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_run_that_is_ended_leaves_nothing_and_goes_on(bench: FaultBench, kind: signal.Signals) -> None:
    run: Struck | None = None
    seen: dict[Phase, str] = {}
    for phase in PHASES if kind in (signal.SIGINT, signal.SIGKILL) else ("start", "measuring"):
        if run is None:
            run = Struck(bench)
        else:
            run.again()
        run.come_to(phase)
        run.process.send_signal(kind)
        run.wake()
        code, output = run.end()
        assert bench.left() == 0
        assert ("run the same command again to resume" in output) == (code > 0)
        assert "Traceback" not in output
        seen[phase] = f"stops with exit code {code}"
        assert [result.outcome.kind for result in bench.results()] == ["ok"] * (phase != "start")
    run.again()
    code, output = run.end()
    assert code == 0, output
    assert "1 of them finished before" in output
    for phase, how in seen.items():
        judge(bench, f"{kind.name} of bench", phase, how, f"stops with exit code {SIGNALS[kind]}")


@pytest.mark.parametrize(
    ("processes", "after_s"),
    [(3, 0.0), (5, 0.1), (5, 0.5)],  # bench, the supervisor and the launcher; then two ranks
)
def test_a_run_that_is_killed_while_its_servers_start_leaves_nothing(
    bench: FaultBench, processes: int, after_s: float
) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "batch": 2})
    process = bench.start("run", matrix, "--out", str(bench.folder / "run"))
    wait_for(lambda: len(bench.processes()) >= processes)
    time.sleep(after_s)
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_also_while_an_attempt_has_a_launch_of_its_own(bench: FaultBench, kind: signal.Signals) -> None:
    run = Struck(bench, "--isolation", "launch")
    run.come_to("measuring")
    run.process.send_signal(kind)
    code, _ = run.end()
    assert bench.left() == 0
    run.again()
    assert run.end()[0] == 0
    exits = "stops with exit code"
    judge(bench, f"{kind.name} of bench, separate launches", "measuring", f"{exits} {code}", f"{exits} {SIGNALS[kind]}")


@pytest.mark.parametrize("extension", ["deepspeed_shm_comm", pytest.param("cpu_adam", marks=pytest.mark.long)])
def test_also_while_deepspeed_compiles(bench: FaultBench, extension: str) -> None:
    """A killed build leaves a file behind for which torch waits forever. It must not block the next run.

    An own config with an offloaded optimizer compiles Adam for the host, too.
    """
    offloads = {"zero_stage": 2, "offload_optimizer_device": "cpu"}
    config = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": offloads}
    (bench.folder / "own.yaml").write_text(yaml.safe_dump(config))
    own = {"name": "mine", "config_file": "own.yaml"}
    extensions = {"TORCH_EXTENSIONS_DIR": str(bench.folder / "extensions")}
    matrix = bench.matrix(matrix={"backend": [own if extension == "cpu_adam" else "zero2"], "batch": 2})
    run = ["run", matrix, "--out", str(bench.folder / "run")]
    process = bench.start(*run, **extensions)
    lock = bench.folder / "extensions" / extension / "lock"
    wait_for(lambda: lock.exists() and "cc1plus" in bench.names(), within_s=300)  # it may compile another one first
    process.kill()
    process.wait()
    assert bench.left() == 0
    assert lock.exists()
    bench(*run, **extensions)
    [result] = bench.results()
    judge(bench, f"SIGKILL of bench while DeepSpeed's {extension} is compiled", "set-up", result, "ok")
    logs = [path.read_text() for path in bench.folder.glob("run/attempts/*/*/rank*.log")]
    assert [f"removed the lock {lock}" in log for log in logs].count(True) == 1


def test_the_reader_of_the_output_goes_away(bench: FaultBench) -> None:
    """``bench run | head -1``"""
    run = Struck(bench)
    assert run.process.stdout.readline().startswith("3 cells, 3 attempts")
    run.process.stdout.close()
    assert run.process.wait(timeout=120) == 0
    judge(bench, "reader of stdout closed", "start", run.result(3), "ok")


def test_whoever_reads_a_report_may_stop_before_its_end(bench: FaultBench) -> None:
    bench("run", bench.matrix(matrix={"backend": "single", "batch": 2}), "--out", str(bench.folder / "run"))
    process = bench.start("report", str(bench.folder / "run"))
    process.stdout.close()
    assert process.wait(timeout=60) in (0, 128 + signal.SIGPIPE)  # 0: all was written before


@pytest.mark.parametrize(("ignored", "exit_code"), [(False, 129), (True, 0)])
def test_the_terminal_is_closed(bench: FaultBench, ignored: bool, exit_code: int) -> None:
    """The window or the connection closes; with ``nohup`` or similar the run continues."""
    terminal, below = pty.openpty()

    def in_a_terminal(*arguments: str) -> "subprocess.Popen[str]":
        program = f"import signal, sys; {'signal.signal(signal.SIGHUP, signal.SIG_IGN); ' if ignored else ''}"
        program += "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from bench.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=HERE,
            env={
                **os.environ,
                MARK: bench.mark,
                "PYTHONPATH": bench.python_path,
                "TERM": "xterm",
                "OMP_NUM_THREADS": "1",
            },
            stdin=below,
            stdout=below,
            stderr=below,
            start_new_session=True,
            text=True,
        )

    run = Struck(bench, start=in_a_terminal)
    os.close(below)
    run.come_to("measuring")
    os.close(terminal)
    assert run.process.wait(timeout=120) == exit_code
    seen = f"exit code {run.process.returncode}"
    assert bench.left() == 0
    assert (run.folder / "report.md").exists()
    run.again()
    assert run.end()[0] == 0
    fault = "terminal closed" + ", SIGHUP ignored" * ignored
    judge(bench, fault, "measuring", seen, f"exit code {exit_code}")


def test_two_runs_in_one_folder(bench: FaultBench) -> None:
    run = Struck(bench)
    run.come_to("measuring")
    output = bench(*run.command, expect=2)
    assert f"another bench (process {run.process.pid}) is running in this folder" in output
    code, output = run.end()
    assert code == 0, output
    judge(bench, "a second bench in the folder", "measuring", run.result(2), "ok")


def test_a_bench_that_sleeps_calls_nothing_a_hang(bench: FaultBench) -> None:
    run = Struck(bench, matrix={"launch": {"hang_after_s": 8, "attempt_timeout_s": 12}})
    folder = run.come_to("warm-up")
    run.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: all((folder / f"rank{rank}.json").exists() for rank in range(2)))
    time.sleep(13)
    run.wake()
    code, output = run.end()
    assert code == 0, output
    judge(bench, "bench suspended for longer than its limits", "warm-up", run.result(2), "ok")


# --- descendants ------------------------------------------------------------------------------------------------------


def server(run: Struck) -> psutil.Process:
    return psutil.Process(run.servers()[1]["pid"])


DEATHS: dict[str, tuple[Callable[[Struck], psutil.Process], str]] = {
    "SIGKILL of a rank server": (server, "the process of rank 1 was killed by SIGKILL"),
    "SIGKILL of the launcher": (Struck.launcher, "accelerate launch was killed by SIGKILL"),
}


@pytest.mark.parametrize("fault", DEATHS)
def test_a_server_or_launcher_dies_and_the_sweep_goes_on(bench: FaultBench, fault: str) -> None:
    whom, says = DEATHS[fault]
    phases: tuple[Phase, ...] = ("set-up", "warm-up", "measuring", "teardown")
    run: Struck | None = None
    for phase in phases:
        if run is None:
            run = Struck(bench)
        else:
            run.again("--rerun", "failed")
        run.come_to(phase)
        whom(run).kill()
        run.wake()
        code, output = run.end()
        spoken = phase == "teardown"  # what its ranks have said is not taken back
        judge(bench, fault, phase, run.result(2), "ok" if spoken else "failed launch", says="" if spoken else says)
        assert code == (0 if spoken else 1), output


def test_a_launcher_that_dies_while_it_starts_its_ranks(bench: FaultBench) -> None:
    run = Struck(bench)
    run.come_to("start")
    run.launcher().kill()
    code, output = run.end()
    assert code == 1, output
    judge(bench, "SIGKILL of the launcher", "start", run.result(1), "failed launch", says="the rank servers did not s")


def test_a_server_that_died_between_attempts_is_replaced(bench: FaultBench) -> None:
    run = Struck(bench)
    run.come_to("teardown")
    server(run).kill()
    wait_for(lambda: not run.launcher().children(recursive=True))
    run.wake()
    code, output = run.end()
    assert code == 0, output
    judge(bench, "SIGKILL of a rank server between attempts", "teardown", run.result(3), "ok")
