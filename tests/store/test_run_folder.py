"""The run folder: what is finished stays, what is not is measured again, and one run at a time has it."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from examples import CUDA_MACHINE, MACHINE, result, stored

from bench.errors import InputError
from bench.records.machine import Machine
from bench.records.outcome import Hang, Result
from bench.records.plan import CellPlan, RunPlan
from bench.store.run_folder import Store

A, B, C = result(batch=1), result(batch=2), result(backend="fsdp", batch=1)


def opened(stack: ExitStack, root: Path, *results: Result, machine: Machine = MACHINE, text: str = "") -> Store:
    """A store that is open for a run that plans ``results``."""
    store = Store(root)
    stack.enter_context(store.open(machine, [r.attempt.cell for r in results], text))
    return store


@pytest.fixture
def stack():  # type: ignore[no-untyped-def]
    with ExitStack() as stack:
        yield stack


def finish(store: Store, *results: Result) -> None:
    for each in results:
        store.begin(each.attempt)
        store.finish(each)


def test_a_folder_holds_one_workload(tmp_path: Path) -> None:
    def plan(workload: str) -> RunPlan:
        cell = A.attempt.cell.model_copy(update={"workload": workload})
        return RunPlan(matrix="mine", cells=(CellPlan(cell=cell, batches=(1,), axes={}),))

    store = Store(tmp_path)
    with store.open(MACHINE, [A.attempt.cell], "", plan=plan("hf:bert")):
        finish(store, A)
    with store.open(MACHINE, [A.attempt.cell], "", plan=plan("hf:bert")):
        pass
    with (
        pytest.raises(InputError, match="of another workload: hf:bert"),
        store.open(MACHINE, [A.attempt.cell], "", plan=plan("./mine.py:net")),
    ):
        pass


def test_results_come_in_the_matrix_order_whenever_they_finish(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path / "deep" / "run", C, A, text="matrix: of mine\n")
    assert store.results() == []
    finish(store, result(batch=10), A, C)
    assert store.results() == [C, A, result(batch=10)]
    assert Store(store.root).results() == store.results()
    assert store.of_cell(A.attempt.cell) == [A, result(batch=10)]
    assert store.result(A.attempt) == A
    assert store.result(B.attempt) is None
    assert (store.root / "matrix.yaml").read_text() == "matrix: of mine\n"


def test_a_later_run_adds_its_cells_and_loses_none(tmp_path: Path) -> None:
    for planned in ((A, C), (result(backend="zero2"), A)):
        with ExitStack() as stack:
            finish(opened(stack, tmp_path, *planned), *planned)
    assert Store(tmp_path).results() == [A, C, result(backend="zero2")]


def test_what_is_not_planned_is_not_shown(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path, A)
    finish(store, A, C)
    assert store.results() == [A]


def test_every_earlier_measurement_is_set_aside(tmp_path: Path, stack: ExitStack) -> None:
    eleven = result(batch=11)
    store = opened(stack, tmp_path, A)
    finish(store, eleven, eleven)
    for turn in range(3):
        folder = store.begin(A.attempt)
        assert list(folder.iterdir()) == []
        (folder / "rank0.log").write_text(f"turn {turn}")
        (folder / "checkpoint").mkdir()  # left by a bench that was killed
    aside = sorted((tmp_path / "superseded").glob("*/*"))
    assert [folder.name for folder in aside] == ["b1.0", "b1.1", "b11.0"]
    assert [(folder / "rank0.log").read_text() for folder in aside[:2]] == ["turn 0", "turn 1"]
    assert not any((folder / "checkpoint").exists() for folder in aside)
    assert store.result(A.attempt) is None
    assert store.result(eleven.attempt) == eleven


def test_finishing_again_replaces_the_result(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path, A)
    finish(store, A)
    again = A.model_copy(update={"outcome": Hang(reason="no result within 8 s")})
    store.finish(again)
    assert store.results() == [again]


def test_an_attempt_that_was_killed_under_way_is_unfinished(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path, A, B)
    finish(store, A)
    (store.begin(B.attempt) / "rank0.json").write_text("{}")
    assert store.result(B.attempt) is None
    assert store.results() == [A]


WHOLE = A.model_dump_json()


@pytest.mark.parametrize(
    "content",
    [
        "",
        WHOLE[: len(WHOLE) // 2],
        "{}",
        "\x00",
        WHOLE.replace('"schema_version":1', '"schema_version":2'),
        WHOLE.replace('"schema_version":1', '"schema_version":1,"surprise":1'),
        WHOLE.replace('"wall_s":10.0', '"wall":10.0'),
        B.model_dump_json(),
        C.model_dump_json(),
    ],
)
def test_a_torn_or_foreign_result_is_unfinished_and_named(tmp_path: Path, stack: ExitStack, content: str) -> None:
    store = opened(stack, tmp_path, A)
    finish(store, A, A, B)
    file = tmp_path / "attempts" / A.attempt.slug / "result.json"
    assert content not in (WHOLE, file.read_text())
    file.write_text(content)
    assert store.result(A.attempt) is None  # nor the one before, which was set aside
    assert store.results() == [B]
    assert list(store.unreadable) == [file]
    finish(store, A)
    assert store.results() == [A, B]
    assert store.unreadable == {}


def test_a_copy_of_a_folder_is_no_second_result(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path, A)
    finish(store, A)
    copy = Path(shutil.copytree(store.folder(A.attempt), store.folder(A.attempt).with_name("b1.bak")))
    (copy.parent / "b.txt").write_text("a note")
    assert store.results() == [A]
    assert list(store.unreadable) == [copy / "result.json"]


@pytest.mark.parametrize("missing", [False, True])
def test_a_torn_or_missing_run_file_is_made_anew_from_the_results(tmp_path: Path, missing: bool) -> None:
    with ExitStack() as stack:
        finish(opened(stack, tmp_path, C, A), A, C)
    file = tmp_path / "run.json"
    whole = file.read_text()
    file.unlink() if missing else file.write_text(whole[:50])
    store = Store(tmp_path)
    assert store.results() == [A, C]  # by name: the matrix's order is gone
    assert list(store.unreadable) == [file]
    with pytest.raises(InputError, match="unlike machine"), ExitStack() as stack:
        opened(stack, tmp_path, C, machine=CUDA_MACHINE)
    with ExitStack() as stack:
        opened(stack, tmp_path, C, A)
    assert file.read_text() == whole


@pytest.mark.parametrize("slug", ["/", "../../etc", "..", "a/b", "a\0b", "", "a\n"])
def test_a_run_file_that_names_another_folder_is_torn(tmp_path: Path, slug: str) -> None:
    with ExitStack() as stack:
        finish(opened(stack, tmp_path, A, C), A, C)
    file = tmp_path / "run.json"
    (tmp_path / "attempts" / ".notes").mkdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "cells": [slug]}))
    store = Store(tmp_path)
    assert store.results() == [A, C]
    assert list(store.unreadable) == [file]


def test_setting_aside_takes_one_attempt(tmp_path: Path, stack: ExitStack) -> None:
    hung, other = (each.model_copy(update={"outcome": Hang(reason="no result within 8 s")}) for each in (B, C))
    store = opened(stack, tmp_path, A, C)
    finish(store, A, hung, other)
    store.set_aside(hung.attempt)
    assert store.results() == [A, other]
    assert [folder.name for folder in (tmp_path / "superseded").glob("*/*")] == ["b2.0"]


def test_the_end_of_a_log_is_told_without_secrets(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-value")
    ended = result()
    store = opened(stack, tmp_path / "run", ended)
    folder = store.begin(ended.attempt)
    (folder / "rank0.log").write_text("first\nsigned in with planted-value\n")
    (folder / "launch.log").write_text("x" * 10_000 + "end")
    (folder / "rank1.log").write_text("\n")
    tails = store.log_tails(ended.attempt, 1)
    assert tails == {"launch.log": "x" * 997 + "end", "rank0.log": "signed in with [MY_TOKEN]"}


def test_each_launch_of_servers_has_a_folder_of_its_own(tmp_path: Path, stack: ExitStack) -> None:
    store = opened(stack, tmp_path)
    folders = [store.servers() for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_absolute() and folder.is_dir() and not any(folder.iterdir()) for folder in folders)


def test_another_job_that_takes_the_number_first_gets_it(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mkdir = opened(stack, tmp_path), Path.mkdir

    def late(folder: Path, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        mkdir(folder, parents=True)
        mkdir(folder, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    assert store.servers().name == "1"


def test_a_run_that_another_job_begins_meanwhile_is_no_foreign_file(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        stack.enter_context(Store(tmp_path).open(A.machine, [A.attempt.cell], "", shared=True))
        yield from listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    stack.enter_context(Store(tmp_path).open(A.machine, [A.attempt.cell], "", shared=True))
    assert Store(tmp_path).plan() is not None


# --- one run at a time ----------------------------------------------------------------------------------------------


def test_a_second_store_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with ExitStack() as stack:
        opened(stack, tmp_path, A)
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(InputError, match=rf"another bench \(process {os.getpid()}\)"), ExitStack() as second:
            opened(second, tmp_path, B)
        assert (tmp_path / "run.json").read_bytes() == before
    with ExitStack() as stack:
        opened(stack, tmp_path, B)


def test_a_disk_that_cannot_lock_is_no_other_bench(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(InputError, match="its file system cannot lock files: No locks available"):
        opened(stack, tmp_path, A)


def test_a_run_that_breaks_gives_the_folder_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Store(tmp_path).open(MACHINE, [], ""):
        raise ZeroDivisionError
    with ExitStack() as stack:
        opened(stack, tmp_path, A)


HOLD = """
import sys, time
from pathlib import Path
from examples import MACHINE
from bench.store.run_folder import Store
with Store(Path(sys.argv[1])).open(MACHINE, [], ""):
    print("open", flush=True)
    time.sleep(60)
"""


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path, stack: ExitStack) -> None:
    here = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": here}, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(InputError, match=f"process {holder.pid}"), ExitStack() as second:
            opened(second, tmp_path, A)
        assert Store(tmp_path).results() == []
        holder.kill()
    opened(stack, tmp_path, A)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_an_unlike_machine_is_refused_with_the_fields_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        finish(opened(stack, tmp_path, A), A)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(InputError) as refused, ExitStack() as stack:
        opened(stack, tmp_path, B, machine=CUDA_MACHINE)
    message = str(refused.value)
    assert "unlike machine" in message
    assert "--out" in message
    assert "accelerators: none against Example GPU, Example GPU" in message
    assert "cpu: " not in message
    assert (tmp_path / "run.json").read_bytes() == before
    with ExitStack() as stack:
        opened(stack, tmp_path, B)


@pytest.mark.parametrize("below", ["", "deeper/run"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, stack: ExitStack, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="cannot write there") as refused:
        opened(stack, tmp_path / "file" / below, A)
    assert "--out" in str(refused.value)


@pytest.mark.parametrize(("name", "problem"), [("empty", "holds no run"), ("missing", "no such folder")])
def test_a_folder_without_a_run_has_no_results_and_names_the_runs_beside_it(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"{problem}\n  `bench run MATRIX` makes one"):
        Store(tmp_path / name).results()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").touch()
    with pytest.raises(InputError, match=f"{problem}\n  allowed: {tmp_path}/mine"):
        Store(tmp_path / name).results()
    with pytest.raises(InputError, match=f"holds no run\n  allowed: {tmp_path}/mine"):
        Store(tmp_path).results()


def test_a_matrix_is_no_run_and_the_message_names_the_runs_near_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "reports" / "mine").mkdir(parents=True)
    (tmp_path / "reports" / "mine" / "run.json").touch()
    with pytest.raises(InputError, match=f"is a file, and a run is a folder\n  allowed: {tmp_path}/reports/mine"):
        Store(tmp_path / "mine.yaml").results()
    (tmp_path / "reports" / "mine" / "matrix.yaml").touch()
    with pytest.raises(InputError, match=f"is a file, and a run is a folder\n  allowed: {tmp_path}/reports/mine"):
        Store(tmp_path / "reports" / "mine" / "matrix.yaml").results()


@pytest.mark.parametrize("content", ["", "{}", '{"attempts": []}', "[1"])
def test_a_run_of_another_version_is_refused(tmp_path: Path, stack: ExitStack, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="not a run of this version"):
        Store(tmp_path).results()
    with pytest.raises(InputError, match="not a run of this version"):
        opened(stack, tmp_path, A)
    assert (tmp_path / "run.json").read_text() == content


def test_a_cell_that_is_listed_twice_is_read_once(tmp_path: Path, stack: ExitStack) -> None:
    finish(opened(stack, tmp_path, A), A)
    stack.close()
    file = tmp_path / "run.json"
    run = json.loads(file.read_text())
    file.write_text(json.dumps({**run, "cells": run["cells"] * 2}))
    assert Store(tmp_path).results() == [A]


def test_a_damaged_script_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = opened(stack, tmp_path, A)
        finish(store, A)
    script = store.folder(A.attempt) / "command.sh"
    script.write_bytes(b"echo \xff")
    assert store.command(A.attempt) == "echo \N{REPLACEMENT CHARACTER}"
    script.unlink()
    script.mkdir()
    assert store.command(A.attempt) is None


KEPT = sorted(file.parent for file in (Path(__file__).parents[2] / "reports").glob("*/run.json"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda folder: folder.name)
def test_results_from_before_repeated_launches_are_read_and_keep_their_names(kept: Path) -> None:
    """A folder's name holds the cell's id: one that had changed would not be read."""
    store = Store(kept)
    results = store.results()
    assert len(results) == len(list(kept.glob("attempts/*/*/result.json"))) > 0
    assert not store.unreadable
    assert {result.attempt.launch for result in results} == {1}
    assert all((store.folder(result.attempt) / "result.json").exists() for result in results)


def test_launches_of_one_attempt_lie_side_by_side_and_are_read_in_their_order(tmp_path: Path) -> None:
    one = result()
    attempts = [one.attempt.model_copy(update={"launch": number}) for number in (11, 1, 2)]
    store = Store(stored(tmp_path / "run", [one.model_copy(update={"attempt": attempt}) for attempt in attempts]))
    names = [store.folder(found.attempt).name for found in store.results()]
    assert names == ["b2", "b2-launch2", "b2-launch11"]
    store.begin(attempts[1])
    assert sorted(file.name for file in tmp_path.glob("run/superseded/*/*")) == ["b2.0"]
    assert [found.attempt.launch for found in store.results()] == [1, 2, 11]


def test_a_run_has_the_batches_that_any_of_its_commands_selected(tmp_path: Path) -> None:
    plan = CellPlan(cell=A.attempt.cell, batches=(1, 2, 4), search=True, axes={})
    store, slug = Store(tmp_path / "run"), A.attempt.cell.slug
    for chosen, batches in (((2,), (2,)), (("probe", 4), (2, 4)), ((2,), (2, 4))):
        of_matrix = RunPlan(matrix="example", cells=(plan,))
        with store.open(MACHINE, [plan.cell], "", plan=of_matrix, batches={slug: chosen}):
            run = store.plan()
            assert [(one.batches, one.search) for one in run.planned] == [(batches, batches != (2,))]


def test_a_folder_is_in_use_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    assert not store.is_in_use()
    with store.open(MACHINE, [A.attempt.cell], ""):
        assert not store.is_in_use()
        (store.root / ".lock").write_text("1")
        assert store.is_in_use()
    assert not store.is_in_use()
