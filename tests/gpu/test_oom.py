"""Running out of memory: in forward, in backward, in libraries beside torch's allocator; and nothing is left over."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks import LIMIT_MIB, MIB, PATHS, REHEARSED, TOO_MUCH_MIB, run, without_paths
from full import OPERATIONS
from harness import ROOT, Bench, account_of, wait_for
from nvml import in_use

from bench.records.account import END
from bench.records.outcome import Ok, Oom, Result
from bench.store import spool

MEASURE = {"warmup_steps": 1, "steps": 3, "phase_steps": 1}
HUNGRY: dict[str, Any] = {"workload": {"name": "hungry:Hungry"}, "measure": MEASURE}
LIMIT: dict[str, Any] = {"memory_limit": f"{LIMIT_MIB}MiB"} if REHEARSED else {}
LEFT = 64 * MIB
"""What the driver may count differently from one moment to the next."""
Found = Callable[..., None]


def keep(kept: Path, case: str, texts: object) -> None:
    """Add what libraries said in one case to `oom_texts.json`."""
    file = kept / "oom_texts.json"
    earlier = json.loads(file.read_text()) if file.exists() else {}
    text = json.dumps({**earlier, case: texts}, indent=1)
    spool.write_text(file, without_paths(text))


def words_of(result: Result, bench: Bench) -> dict[str, object]:
    """The message of a rank that ran out, and the end of its log."""
    assert isinstance(result.outcome, Oom), result.outcome
    log = bench.folder / "run/attempts" / result.attempt.slug / f"rank{result.outcome.rank}.log"
    return {"outcome": result.outcome.model_dump(mode="json"), "log": log.read_text()[-6000:]}


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_running_out_of_memory(bench: Bench, kept: Path, found: Found, way: str) -> None:
    """Running out of memory is an outcome with its source and the bytes asked for."""
    oom, after = run(bench, [{"ask_mib": TOO_MUCH_MIB, "way": way}, {}], launch=LIMIT, **HUNGRY)
    assert isinstance(oom.outcome, Oom), oom.outcome
    assert isinstance(after.outcome, Ok), after.outcome
    keep(kept, way, words_of(oom, bench))
    found(source=oom.outcome.source, asked=oom.outcome.bytes_asked)
    assert oom.outcome.bytes_asked == pytest.approx(TOO_MUCH_MIB * MIB, rel=0.01)
    assert (oom.outcome.source == "cuda_allocator") == (not REHEARSED)


def test_nothing_is_left_over(bench: Bench, found: Found) -> None:
    """After ok, out of memory and SIGKILL, the driver counts as much memory in use as before."""
    before = in_use()
    kinds = [result.outcome.kind for result in run(bench, [{}, {"ask_mib": TOO_MUCH_MIB}], launch=LIMIT, **HUNGRY)]
    assert kinds == ["ok", "oom"]
    bench.assert_gone()
    after = in_use()
    matrix = bench.matrix(
        name="long",
        workload={"name": "hungry:Hungry", "sleep_s": 1},
        matrix={"backend": "single", "batch": 2},
        measure={**MEASURE, "steps": 500},
        launch={"num_processes": 1},
    )
    process = bench.start("run", matrix, "--out", str(bench.folder / "killed"), PYTHONPATH=PATHS)
    wait_for(lambda: list((bench.folder / "killed").glob("attempts/*/*/rank0.beat")))
    time.sleep(5)  # its memory is on the device by then
    during = in_use()
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.assert_gone()
    wait_for(lambda: in_use() <= before + LEFT, within_s=10)
    found(before_MiB=before // MIB, after_MiB=after // MIB, during_MiB=during // MIB, killed_MiB=in_use() // MIB)
    assert after <= before + LEFT


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_library_on_a_full_device(kept: Path, found: Found, operation: str) -> None:
    """On a device that is full, an error of the library that needs a handle or a plan is told as memory."""
    command = [sys.executable, str(Path(__file__).with_name("full.py")), operation]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    keep(kept, f"full device: {operation}", told)
    found(**{name: told[name] for name in ("error", "kind", "free_MiB")}, says=str(told["text"])[:120])
    assert told["error"] is None or told["kind"] is not None


@pytest.mark.gpus(2)
def test_one_rank_runs_out_while_the_others_wait(bench: Bench, found: Found) -> None:
    """One rank runs out of memory while its peers wait in NCCL; all have ended within 10 s."""
    launch = {"num_processes": 2, **LIMIT}
    cells: list[dict[str, Any]] = [{"backend": "ddp", "ask_mib": TOO_MUCH_MIB, "rank": 1}, {"backend": "ddp"}]
    oom, after = run(bench, cells, launch=launch, **HUNGRY)
    assert isinstance(oom.outcome, Oom), oom.outcome
    assert oom.outcome.rank == 1
    assert isinstance(after.outcome, Ok), after.outcome
    folder = bench.folder / "run/attempts" / oom.attempt.slug
    first, last = sorted(file.stat().st_mtime for file in folder.glob("rank?.json"))
    found(between_ranks_s=f"{last - first:.1f}", end_s=f"{account_of(oom).parts_s[END]:.1f}")
    assert last - first + account_of(oom).parts_s[END] < 10
