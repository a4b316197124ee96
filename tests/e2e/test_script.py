"""Scripts of a user, really run: each way to end, the search, and a run that is killed and repeated."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from harness import HERE, Bench, reading, wait_for

from bench.records.outcome import Failed, Hang, Oom, Outcome, Result, Scripted
from bench.store.run_folder import Store

COMMAND = ["python", "own_script.py", "--batch", "{batch}", "--how", "{how}", "--out", "{out}"]
RESULT = {"step_time_ms": "step.mean_ms", "peak_allocated_bytes": "peak", "num_processes": "world"}
ENDS: dict[str, Callable[[Outcome], bool]] = {
    "works": lambda end: isinstance(end, Scripted) and end.step_time_s_per_rank == (0.012,),
    "is slow": lambda end: isinstance(end, Scripted),
    "hangs": lambda end: isinstance(end, Hang) and end.reason == "no progress for 3 s: its last line is 'it hangs'",
    "segfaults": lambda end: isinstance(end, Failed) and end.reason == "killed by SIGSEGV" and end.fault == "killed",
    "prints an OOM": lambda end: isinstance(end, Oom) and end.bytes_asked == 2**31 and end.source == "cuda_allocator",
    "raises": lambda end: isinstance(end, Failed) and end.reason == "exit code 1: ValueError: no such dataset",
    "writes none": lambda end: isinstance(end, Failed) and end.reason.startswith("the script wrote no result"),
    "writes torn": lambda end: isinstance(end, Failed) and "script.json:1: is not JSON" in end.reason,
    "writes NaN": lambda end: isinstance(end, Failed) and "NaN is not a number" in end.reason,
    "has no key": lambda end: isinstance(end, Failed) and "has no key 'step.mean_ms'" in end.reason,
    "ran elsewise": lambda end: isinstance(end, Failed) and "with num_processes 8, not 1" in end.reason,
    "aborts at exit": lambda end: isinstance(end, Scripted),
    "aborts": lambda end: (
        isinstance(end, Failed) and end.reason == "killed by SIGABRT: terminate called without an active exception"
    ),
    "fails late": lambda end: isinstance(end, Failed) and end.reason == "exit code 3: gave up",
}


def matrix(to: Path, **content: object) -> str:
    file = to / "script.yaml"
    given = {"command": COMMAND, "result": RESULT, "folder": str(HERE), "launch": {"hang_after_s": 3}, **content}
    given["measure"] = {"launches": 1, **given.get("measure", {})}
    file.write_text(yaml.safe_dump(given))
    return str(file)


def by_way(results: list[Result]) -> dict[object, Result]:
    return {result.attempt.cell.options["how"]: result for result in results}


def test_each_way_to_end_has_its_outcome_and_a_killed_run_goes_on(bench: Bench, tmp_path: Path) -> None:
    file = matrix(tmp_path, matrix={"how": list(ENDS), "batch": 2})
    out = ("--out", str(tmp_path / "run"))
    killed = bench.start("run", file, *out, "launch.hang_after_s=60")
    wait_for(lambda: len(list((tmp_path / "run").glob("attempts/*/*/result.json"))) == 2)
    wait_for(lambda: "sleep" in bench.names())
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    bench.assert_gone()
    before = by_way(bench.results())
    assert set(before) == {"works", "is slow"}

    shown = bench("run", file, *out, cwd=tmp_path, expect=1)
    after = by_way(bench.results())
    assert {way for way, fits in ENDS.items() if not fits(after[way].outcome)} == set(), {
        way: result.outcome for way, result in after.items()
    }
    assert all(after[way] == result for way, result in before.items())
    assert "fails late, batch 2: failed" in shown
    report = reading("report", "--full", str(tmp_path / "run"), "--format", "md")
    # The word before it depends on what else this machine does: on a busy one the leading row is doubted.
    assert re.search(r"For how works: .*script, batch 2: 167 samples/s", report)
    bench.assert_gone()


def test_the_search_finds_where_the_memory_of_a_script_ends(bench: Bench, tmp_path: Path) -> None:
    limits = {"launch": {"memory_limit": "120MiB"}, "probe": {"max_batch": 500}}
    file = matrix(tmp_path, matrix={"how": "works", "batch": "probe"}, **limits)
    shown = bench("run", file, "--out", str(tmp_path / "run"))
    [probe] = Store(tmp_path / "run").probes()
    found = probe.found
    assert found.certificate == "next_fails"
    assert 50 < found.fits < 120
    assert found.fails == found.fits + 1
    failed = [result.outcome for result in bench.results() if result.attempt.batch_per_rank == found.fails]
    assert [(one.kind, getattr(one, "source", None)) for one in failed] == [("oom", "python")]
    assert found.safe.confirmed
    assert "probing with a limit of 120 MiB per process of the script (launch.memory_limit), enforced" in shown
    assert f"script, batch {found.safe.batch}: " in shown
    before = bench.results()
    bench("run", file, "--out", str(tmp_path / "run"))
    assert bench.results() == before


TRAINER = """\
import json, sys
folder, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import os
os.makedirs(folder)
figures = {"train_runtime": 5.0, "train_samples_per_second": 2.0 * batch * steps, "train_steps_per_second": 2.0}
with open(os.path.join(folder, "train_results.json"), "w") as file:
    json.dump(figures, file)
"""


def test_a_script_that_names_its_own_files_as_a_trainer_does_and_accumulates(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    command = ["python", "train.py", "{output_dir}", "{batch}", "{gradient_accumulation_steps}"]
    axes = {"gradient_accumulation_steps": [1, 4], "batch": 8}
    file = matrix(tmp_path, command=command, result={}, folder=".", matrix=axes)
    shown = bench("run", file, "--out", str(tmp_path / "run"))
    rates = [one.outcome.samples_per_s_global for one in bench.results() if isinstance(one.outcome, Scripted)]
    assert sorted(rates, key=lambda rate: rate or 0) == [16.0, 64.0]
    assert sorted(result.attempt.batch_global for result in bench.results()) == [8, 32]
    assert "gradient_accumulation_steps=4, batch 8: ok, 64" in shown


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"command": ["nowhere.sh", *COMMAND[2:]]}, "script.yaml:2: command[0]: there is no program 'nowhere.sh'"),
        ({"folder": "nowhere"}, "folder: there is no folder"),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_launched(
    wrong: dict[str, object], says: str, bench: Bench, tmp_path: Path
) -> None:
    file = matrix(tmp_path, matrix={"how": "works", "batch": 2}, **wrong)
    assert says in bench("run", file, "--out", str(tmp_path / "run"), expect=2)
    assert not (tmp_path / "run").exists()
