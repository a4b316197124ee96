"""Rows that other sources made than the newest of their workload."""

from examples import MACHINE, launched, ok, rendered, result

from bench.records.outcome import Failed, Result
from bench.records.script import Script
from bench.records.sources import LastCommand
from bench.report.advice import advise
from bench.report.compare import compare_runs
from bench.report.contract import RUN
from bench.report.sources import newest_sources
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.compare import changed_sources, warning
from bench.report.tables.doubts import doubt_sentences
from bench.report.tables.show import show

OLD, NEW = {"model/policy.py": "0", "model/data.py": "0"}, {"model/policy.py": "1", "model/data.py": "0"}


def made(by: dict[str, str] | None, hour: int, backend: str = "ddp", workload: str = "pi07", run: str = "") -> Result:
    one = result(ok(backend=backend), backend=backend, workload=workload)
    named = {RUN: run, **one.axes} if run else one.axes
    return one.model_copy(update={"sources": by, "started_at": f"2026-01-01T{hour:02}:00:00+00:00", "axes": named})


def stale(*results: Result) -> list[str]:
    return [str(row.settings["backend"]) for row in summarize(results).rows if row.stale]


def test_a_row_is_stale_when_the_newest_of_its_workload_has_other_sources() -> None:
    assert stale(made(OLD, 1), made(NEW, 2, "fsdp")) == ["ddp"]
    assert stale(made(OLD, 2), made(NEW, 1, "fsdp")) == ["fsdp"]
    assert stale(made(OLD, 1), made(OLD, 2, "fsdp")) == []
    assert stale(made(OLD, 1), made(NEW, 2, "fsdp", workload="mine:Mine")) == []
    assert stale(made(OLD, 1, run="a"), made(NEW, 2, "fsdp", run="b")) == []


def test_a_later_command_that_kept_everything_makes_it_stale() -> None:
    def stale_after(hour: int, workload: str = "pi07", *, run: str = "") -> list[str]:
        last = LastCommand(at=f"2026-01-01T{hour:02}:00:00+00:00", workload=workload, sources=NEW)
        results = [made(OLD, 2, run=run), made(OLD, 2, "fsdp", run=run)]
        rows = summarize(results, newest=newest_sources(results, {"a": last})).rows
        return [str(row.settings["backend"]) for row in rows if row.stale]

    assert stale_after(3) == stale_after(3, run="a") == ["ddp", "fsdp"]
    assert stale_after(1) == stale_after(3, "mine:Mine") == stale_after(3, run="b") == []


def test_scripts_with_different_commands_do_not_make_each_other_stale() -> None:
    def scripts(*folders: str) -> list[Result]:
        return [
            result(ok(), workload="train.py", script=Script(command=("python", f"{folder}/train.py"))).model_copy(
                update={"sources": {f"{number}.py": "0"}, "started_at": f"2026-01-01T0{number}:00:00+00:00"}
            )
            for number, folder in enumerate(folders)
        ]

    assert stale(*scripts("a", "b")) == []
    assert stale(*scripts("a", "a")) == ["ddp"]


def test_a_row_that_does_not_know_its_sources_is_not_stale() -> None:
    assert stale(made(None, 1), made(NEW, 2, "fsdp")) == []
    assert stale(made(OLD, 1), made(None, 2, "fsdp")) == []


def test_a_stale_row_is_marked_in_its_tables_and_doubted() -> None:
    results = [made(OLD, 1), made(NEW, 2, "fsdp")]
    [doubt] = doubt_sentences(summarize(results))
    assert doubt == ("ddp, batch 2 (stale): made by other sources than the newest of its workload: model/policy.py.")
    tables = [part for part in rendered(results).split("\n\n") if part.startswith("|") and "batch per rank" in part]
    rows = [line for table in tables for line in table.splitlines()[2:]]
    assert len(rows) > 4
    assert all(("2 (stale)" in line) == ("| ddp " in line) for line in rows), rows
    assert "(stale)" not in rendered([made(OLD, 1), made(OLD, 2, "fsdp")])


def test_a_stale_row_is_not_recommended_where_another_one_is_measured() -> None:
    fast, slow = ([0.1] * 3, [0.1] * 3), ([0.2] * 3, [0.2] * 3)
    old = made(OLD, 1, "fsdp").model_copy(update={"outcome": ok(*fast, backend="fsdp")})
    new = made(NEW, 2).model_copy(update={"outcome": ok(*slow)})
    first, *_, last = advice_sentences(summarize([old, new]), advise(summarize([old, new])))
    assert first.startswith("train with ddp, batch 2: ")
    assert "no other setting to recommend was measured" in first
    assert last == "fsdp: its results are stale: they were made by other sources; `bench run` measures them again."
    only_old = advice_sentences(summarize([old]), advise(summarize([old])))
    assert only_old[0].startswith("train with fsdp, batch 2: ")


def test_launches_of_mixed_sources_decide_nothing() -> None:
    def launches(by: dict[str, str], backend: str, step_s: float) -> list[Result]:
        times_s = [step_s * (1 + 0.01 * (index % 3)) for index in range(20)]
        one = result(ok(times_s, times_s, backend=backend), backend=backend)
        each = [launched(one, launch) for launch in range(1, 5)]
        return [
            each_one.model_copy(update={"sources": by, "started_at": f"2026-01-01T0{launch}:00:00+00:00"})
            for launch, each_one in enumerate(each, 1)
        ]

    def word(results: list[Result]) -> str:
        (ratio,) = {pair.ratio for pair in compare_axis(summarize(results)).speed_ups if not pair.matched}
        return ratio.word

    slow, fast = launches(OLD, "ddp", 0.3), launches(OLD, "fsdp", 0.1)
    assert word(slow + fast) == "faster"
    mixed = [*fast[:2], *launches(NEW, "fsdp", 0.1)[2:]]
    assert word(slow + mixed) == "undecided"
    assert "launches of different sources (stale)" in rendered(slow + mixed)
    assert stale(*slow, *mixed) == ["ddp", "fsdp"]
    assert word(slow + launches(NEW, "fsdp", 0.1)) == "undecided"
    failed = {
        "outcome": Failed(rank=None, phase=None, reason="no"),
        "sources": NEW,
        "started_at": "2026-01-02T00:00:00",
    }
    assert word([*slow, *fast[:3], fast[3].model_copy(update=failed)]) == "undecided"


def test_show_knows_what_the_run_holds_besides_the_cell() -> None:
    one, newest = made(OLD, 1), {("pi07", (), ""): NEW}
    attempts = next(part for part in show([one], {}, newest=newest) if part.title == "Attempts")
    assert "2 (stale)" in str(attempts)
    assert "stale" not in str(next(part for part in show([one], {}) if part.title == "Attempts"))


def test_compare_names_the_sources_that_differ_and_marks_an_environment_that_does() -> None:
    two = compare_runs([made(OLD, 1)], [made(NEW, 2)])
    assert changed_sources(two) == "Sources that differ between base and head: model/policy.py."
    assert warning(two) is None
    assert changed_sources(compare_runs([made(None, 1)], [made(NEW, 2)])) is None
    ring = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Ring"}})
    tree = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Tree"}})
    unlike = warning(compare_runs([result(machine=ring)], [result(machine=tree)]))
    assert unlike is not None
    assert unlike.endswith("NCCL_ALGO: Ring against Tree.")


def test_an_environment_that_differs_within_a_report_is_stated() -> None:
    ring = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Ring"}})
    results = [result(machine=ring), result(ok(backend="fsdp"), backend="fsdp", machine=MACHINE)]
    assert doubt_sentences(summarize(results)) == []
    results[1] = results[1].model_copy(update={"machine": MACHINE.model_copy(update={"environment": {}})})
    assert doubt_sentences(summarize(results)) == [
        "The results differ in their environment: NCCL_ALGO: Ring against not set."
    ]
    assert "NCCL_ALGO Ring" in rendered(results)
