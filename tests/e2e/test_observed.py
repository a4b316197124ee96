"""Scripts as people have them, measured from outside: real launches of two ranks. No script knows of bench."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Bench, reading
from observing import MEASURE, PLAIN, TORCHRUN, matrix, per_step, regime, seen

from bench.launch.ports import free_port
from bench.observe.files import PATIENCE_S
from bench.records.outcome import Failed, Hang, Ok, Oom, Outcome
from bench.records.phases import SEEN_PHASES
from bench.records.verdict import Stopped
from bench.store.run_folder import Store

OK = {"plain", "ignores", "accumulates", "every second", "uneven", "two optimizers", "fused", "scaler"}
OK |= {"sigterm", "thread", "forks", "late"}
ENDS: dict[str, Callable[[Outcome], bool]] = {
    "short": lambda end: isinstance(end, Failed) and "ended after 6 steps" in end.reason,
    "raises": lambda end: (
        isinstance(end, Failed)
        and (end.rank, end.reason.partition(" (")[0]) == (1, "ValueError: no such sample")
        and "plain_ddp.py:" in end.reason
    ),
    "dies": lambda end: isinstance(end, Failed) and (end.rank, end.fault) == (1, "killed") and "SIGKILL" in end.reason,
    "oom": lambda end: isinstance(end, Oom) and end.rank is not None and end.source == "cpu_allocator",
}


@pytest.mark.timeout(1800)  # 17 launches, on a machine that may be busy
def test_each_style_is_seen_for_what_it_is_and_ends_on_all_ranks(bench: Bench, tmp_path: Path) -> None:
    file = matrix(tmp_path, PLAIN, matrix={"style": [*OK, *ENDS], "batch": 8})
    before = sorted(path.name for path in (tmp_path / "scripts").iterdir())
    shown = bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    bench.assert_gone()
    after = {path.name for path in (tmp_path / "scripts").iterdir()} - {"checkpoint.pt"}  # of the one that ended itself
    assert sorted(after) == before
    results = {result.attempt.cell.options["style"]: result for result in bench.results()}
    assert {name for name, fits in ENDS.items() if not fits(results[name].outcome)} == set(), {
        name: results[name].outcome for name in ENDS
    }
    steps = {name: per_step(results[name]) for name in OK}
    assert steps == {
        **dict.fromkeys(OK, (1, 8)),
        "ignores": (1, 3),
        "accumulates": (4, 32),
        "every second": (2, 16),
        "uneven": (1, pytest.approx(34 / 6)),  # 8, 8, 8 and 1 samples of 25
    }
    others = {name: (seen(results[name]).optimizers, seen(results[name]).skipped_steps) for name in OK}
    assert others == {**dict.fromkeys(OK, (1, 0)), "two optimizers": (2, 0), "fused": (4, 0), "scaler": (1, 1)}
    assert "style=ignores, batch 8, every rank: its model took 3 samples per forward, and the matrix says 8" in shown
    assert "style=accumulates, batch 8, every rank: a step had 4 forwards, and the matrix says 1" in shown
    assert "1 of 6 steps did not change the weights: their gradients overflowed" in shown
    assert "rank 1 is a straggler" in reading("report", "--full", str(tmp_path / "run"), "--format", "md")
    for name in OK:
        for rank in results[name].outcome.ranks:
            assert set(rank.phase_times_s) == {*SEEN_PHASES, "total"}, name
            assert set(rank.own_work_s) == {*SEEN_PHASES}, name
    accumulated = results["accumulates"].outcome
    slowest_s = max(sum(rank.step_times_s) for rank in accumulated.ranks) / 6
    assert accumulated.samples_per_step(results["accumulates"].attempt) == 64
    table = Store(tmp_path / "run")
    assert table.results()
    rows = reading("report", "--full", str(tmp_path / "run"), "--format", "csv").splitlines()
    header, row = rows[0].split(","), next(row.split(",") for row in rows if "accumulates" in row)
    assert float(row[header.index("samples_per_s_global")]) == pytest.approx(64 / slowest_s)
    assert int(row[header.index("batch_global")]) == 64


def test_unusual_steps_are_measured_or_refused_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    odd = ["odd.py", "--batch-size", "{batch}", "--style", "{style}"]
    styles = ["views", "tensor", "scripted", "central"]
    file = matrix(tmp_path, [*TORCHRUN, *odd], matrix={"style": styles, "batch": 8})
    shown = bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    results = {result.attempt.cell.options["style"]: result for result in bench.results()}
    for style, (forwards, samples, parameters) in {
        "views": (4, 16, 2 * 65 * 64),
        "tensor": (None, 8, 64 * 64),  # no module
        "scripted": (None, 8, 2 * 65 * 64),  # takes no hooks
    }.items():
        result, observed = results[style], seen(results[style])
        assert isinstance(result.outcome, Ok)
        assert observed.forwards == (forwards and 6 * forwards), style
        assert result.outcome.samples_per_step(result.attempt) == 2 * samples, style
        assert regime(result).trained_parameters == parameters, style
    assert "style=views, batch 8, every rank: its DataLoaders gave 16 samples a step, and the matrix says 8" in shown
    central = results["central"].outcome
    assert isinstance(central, Failed)
    assert central.reason.startswith("rank 1 made no optimizer step")
    assert results["central"].wall_s < PATIENCE_S, "rank 0 does not wait for it"
    (tmp_path / "spawned").mkdir()
    command = ["python", *odd, "--port", str(free_port())]
    file = matrix(tmp_path / "spawned", command, matrix={"style": "spawned", "batch": 8})
    bench("run", file, "--out", str(tmp_path / "spawned" / "run"))
    [spawned] = Store(tmp_path / "spawned" / "run").results()
    assert (per_step(spawned), seen(spawned).trainers, regime(spawned).world_size) == ((1, 8), 1, 2)


def test_a_script_that_was_asked_for_another_backend_or_world_has_failed(bench: Bench, tmp_path: Path) -> None:
    command = [*PLAIN[:-1], "{backend}"]
    file = matrix(tmp_path, command, matrix={"backend": ["fsdp", "ddp"], "batch": 8})
    bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    ends = {result.attempt.cell.backend: result.outcome for result in bench.results()}
    assert isinstance(ends["ddp"], Ok)
    assert ends["fsdp"].fault == "regime"
    assert "fsdp shards with FULL_SHARD, observed none" in ends["fsdp"].reason
    (tmp_path / "two.sh").write_text('torchrun --standalone --nproc_per_node 2 "$@"')
    alone = ["sh", str(tmp_path / "two.sh"), "plain_ddp.py", "--batch", "{batch}"]
    file = matrix(tmp_path, alone, matrix={"batch": 8}, launch={})
    bench("run", file, "--out", str(tmp_path / "alone"), expect=1)
    (result,) = bench.results("alone")
    assert isinstance(result.outcome, Failed)
    assert "trained in 2 processes, and the matrix says 1" in result.outcome.reason
    assert "launch.num_processes: 2" in result.outcome.reason


def test_a_hang_names_the_rank_and_its_place(bench: Bench, tmp_path: Path) -> None:
    launch = {"num_processes": 2, "hang_after_s": 40}
    file = matrix(tmp_path, PLAIN, matrix={"style": "hangs", "batch": 8}, launch=launch)
    bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    (result,) = bench.results()
    assert isinstance(result.outcome, Hang)
    assert "plain_ddp.py:" in result.outcome.reason
    assert {stuck.rank for stuck in result.outcome.stuck} == {0, 1}
    assert "rank 1" in result.outcome.reason
    bench.assert_gone()


def test_a_search_ends_where_memory_does_and_finds_out_an_ignored_batch(bench: Bench, tmp_path: Path) -> None:
    probe = {"max_batch": 16}
    file = matrix(tmp_path, PLAIN, matrix={"style": ["oom", "ignores"], "batch": "probe"}, probe=probe)
    shown = bench("run", file, "--out", str(tmp_path / "run"))
    found = {probe.cell.options["style"]: probe.found for probe in Store(tmp_path / "run").probes()}
    assert getattr(found["oom"], "max_batch_per_rank", found) == 4, shown
    assert isinstance(found["ignores"], Stopped)
    assert "the script ignores its batch: 3 samples per forward at 1 and at 2" in found["ignores"].reason


def test_what_bench_cannot_see_is_said_and_a_log_may_have_it(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("print('speed: 12.5 samples/s')\nprint('speed: 25.0 samples/s')\n")
    command = ["python", str(tmp_path / "quiet.py"), "{batch}"]
    file = matrix(tmp_path, command, matrix={"batch": 8}, launch={}, measure={})
    bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    (result,) = bench.results()
    assert isinstance(result.outcome, Failed)
    assert "bench saw no step in it: it looked for optimizers of torch.optim" in result.outcome.reason
    assert "result:" in result.outcome.reason
    pattern = {"samples_per_s": r"regex:speed: ([\d.]+) samples/s"}
    file = matrix(tmp_path, command, matrix={"batch": 8}, launch={}, measure={}, result=pattern)
    bench("run", file, "--out", str(tmp_path / "read"))
    (result,) = bench.results("read")
    assert getattr(result.outcome, "samples_per_s_global", None) == 25.0


def test_the_script_runs_by_hand_without_bench(bench: Bench, tmp_path: Path) -> None:
    file = matrix(tmp_path, PLAIN, matrix={"style": "short", "batch": 8})
    bench("run", file, "--out", str(tmp_path / "run"), expect=1)
    (script,) = (tmp_path / "run").glob("attempts/*/b8/command.sh")
    assert "BENCH_OBSERVE" not in script.read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert subprocess.run(["sh", str(script)], check=False, env={**os.environ, "PATH": path}).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_fifty_launches_end_on_both_ranks_after_the_same_step(bench: Bench, tmp_path: Path) -> None:
    styles = ["plain", "sigterm", "thread", "forks", "accumulates"]
    measure = {**MEASURE, "launches": 10}
    file = matrix(tmp_path, PLAIN, matrix={"style": styles, "batch": 8}, measure=measure)
    before = sorted(path.name for path in (tmp_path / "scripts").iterdir())
    process = bench.start("run", file, "--out", str(tmp_path / "run"))
    output, _ = process.communicate(timeout=7000)
    assert process.returncode == 0, output
    bench.assert_gone()
    assert sorted(path.name for path in (tmp_path / "scripts").iterdir()) == before
    results = bench.results()
    assert len(results) == 50
    ends = Counter((seen(result).forwards, seen(result, 1).forwards) for result in results)
    assert ends == {(6, 6): 40, (24, 24): 10}
