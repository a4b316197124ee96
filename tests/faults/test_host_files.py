"""Torn, edited or foreign files of a run: reported in one line, never silently dropped, and measured again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from table import FaultBench, Phase, judge

from bench.store.run_folder import Store

WHEN: Phase = "start"


def edit(file: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn result": (tear, "Invalid JSON"),
    "emptied result": (lambda file: file.write_text(""), "Invalid JSON"),
    "result of an edited cell": (
        lambda file: edit(file, lambda content: content["attempt"]["cell"]["options"].update(width=65)),
        "it is of another cell or batch, ddp-",
    ),
    "result without a field": (lambda file: edit(file, lambda content: content.pop("machine")), "machine: Field requ"),
}


def test_damaged_results_are_named_and_measured_again(bench: FaultBench) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "num_cams": [1, 2, 3, 4, 5, 6], "batch": 2})
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    bench(*run)
    whole = bench.results()
    files = [bench.folder / "run/attempts" / result.attempt.slug / "result.json" for result in whole]
    for file in files[:5]:
        bench.give_up(file)
    for file, (damage, _) in zip(files, DAMAGE.values(), strict=False):
        damage(file)
    # An edited figure may still be valid, and a foreign file is not a result.
    edit(files[4], lambda content: content["outcome"]["ranks"][0].update(setup_s=1234.5))
    (files[4].parent / "notes.txt").write_text("mine")
    shutil.copytree(files[5].parent, copy := files[5].parent.with_name("b2.backup"))
    tear(bench.folder / "run/run.json")

    output = bench(*run)
    assert "2 of them finished before" in output
    assert "run.json cannot be read (" in output
    for file, (_, why) in zip(files, DAMAGE.values(), strict=False):
        [line] = [line for line in output.splitlines() if str(file.relative_to(bench.folder / "run")) in line]
        assert why in line
        assert line.endswith("): its attempt is measured again")
    assert f"{copy.relative_to(bench.folder / 'run')}/result.json cannot be read (it is of another cell" in output

    after = bench.results()
    assert [result.attempt for result in after] == [result.attempt for result in whole]
    again = [new != old for new, old in zip(after, whole, strict=True)]
    assert again == [True, True, True, True, True, False]  # the fifth differs by its edited figure
    assert after[4].outcome.ranks[0].setup_s == 1234.5
    aside = bench.folder / "run/superseded"
    assert len(list(aside.glob("*/b2.0/result.json"))) == len(DAMAGE)
    for fault, result in zip([*DAMAGE, "result with an edited figure"], after, strict=False):
        judge(bench, fault, WHEN, result, "ok")


def test_a_report_names_what_it_leaves_out(bench: FaultBench) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "num_cams": [1, 2], "batch": 2})
    bench("run", matrix, "--out", str(bench.folder / "run"))
    torn = bench.folder / "run/attempts" / bench.results()[0].attempt.slug / "result.json"
    bench.give_up(torn)
    tear(torn)
    (bench.folder / "run/run.json").write_text("")
    for command in (["report"], ["show", "num_cams=2"]):
        lines = bench(*command, str(bench.folder / "run")).splitlines()
        said = [line for line in lines if line.startswith(("bench: left out: ", "bench: rebuilt from the results: "))]
        assert [any(str(file) in line for line in said) for file in (torn, bench.folder / "run/run.json")] == [True] * 2
    judge(bench, "torn run.json", WHEN, bench.results()[0], "ok", goes_on=False)


def test_a_torn_verdict_of_a_search_is_found_again_from_its_attempts(bench: FaultBench) -> None:
    matrix = bench.matrix(
        matrix={"backend": "ddp", "batch": "probe"},
        probe={"max_batch": 2, "granularity": 1},
        launch={"memory_limit": "1GiB"},
    )
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    bench(*run)
    [before] = Store(bench.folder / "run").probes()
    results = bench.results()
    [file] = (bench.folder / "run/attempts").glob("*/probe.json")
    tear(file)
    output = bench(*run)
    assert f"{file.relative_to(bench.folder / 'run')} cannot be read (Invalid JSON" in output
    assert Store(bench.folder / "run").probes() == [before]
    assert bench.results() == results
    judge(bench, "torn verdict of a search", WHEN, results[0], "ok")


@pytest.mark.parametrize("isolation", ["fork", "launch"])
def test_a_rank_that_leaves_half_a_result_has_failed_and_its_file_is_named(bench: FaultBench, isolation: str) -> None:
    matrix = bench.matrix(
        workload={"name": "tearer:Tearer"}, matrix={"backend": "ddp", "tears": [True, False], "batch": 2}
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), "--isolation", isolation, expect=1)
    torn = bench.results()[0]
    judge(bench, "torn rank file", "measuring", torn, "failed ended", says="^rank1.json cannot be read: ", rank=1)
