"""Where the wall time of a cell and of an attempt went, in a report and in `bench show`."""

import pytest
from examples import accounted, rendered, result

from bench.records.outcome import Failed, Oom, Result, Scripted, Skipped
from bench.report.summary import summarize
from bench.report.tables.account import account, account_of_each
from bench.report.tables.show import show
from bench.report.tables.table import Table

WHOLE = {"launch": 2.0, "start": 0.25, "join": 0.25, "setup": 1.0, "warmup": 1.5, "measure": 3.0, "phases": 1.0}
ENDED = {"done": 0.75, "end": 0.25}


def column(table: Table, header: str) -> list[str]:
    return [row[table.headers.index(header)] for row in table.rows]


def test_a_cell_has_one_row_with_the_parts_of_all_its_attempts() -> None:
    oom = accounted(result(Oom(rank=0, phase="bwd", reason="no"), batch=4), launch=2.0, join=1.0, setup=7.0)
    table = account(summarize([accounted(result(), **WHOLE, **ENDED), oom, result(Skipped(reason="no"), batch=8)]))
    assert dict(zip(table.headers, table.rows[0], strict=True)) == {
        "cell": "ddp",
        "attempts": "2",
        "wall": "20.00",
        "launch": "4.25",
        "join": "1.25",
        "build": "8.00",
        "warm-up": "1.50",
        "measured": "4.00",
        "teardown": "1.00",
        "not accounted for": "0.00",
        "in measured steps": "20.0 %",
    }


def test_what_is_in_no_part_is_shown() -> None:
    killed = accounted(result(Failed(rank=0, phase="setup", reason="gone")), launch=2.0, join=1.0)
    (each, cell) = account_of_each([killed]), account(summarize([killed]))
    assert column(each, "not accounted for") == column(cell, "not accounted for") == ["7.00"]
    assert column(cell, "in measured steps") == ["0.0 %"]
    assert "build" not in each.headers  # it came no further


def test_parts_to_which_no_attempt_came_are_left_out_and_an_attempt_that_stopped_before_has_none() -> None:
    oom = accounted(result(Oom(rank=0, phase="setup", reason="no"), batch=4), launch=2.0, setup=8.0)
    table = account_of_each([accounted(result(), **WHOLE, **ENDED), oom])
    assert column(table, "batch per rank") == ["2", "4"]
    assert column(table, "phases") == ["1.00", ""]
    assert {"extension", "checkpoint"}.isdisjoint(table.headers)
    assert column(table, "in measured steps") == ["40.0 %", "0.0 %"]


def test_attempts_without_an_account_are_named_and_their_time_is_not_mixed_in() -> None:
    table = account(summarize([accounted(result(), **WHOLE, **ENDED), result(batch=4), result(backend="zero2")]))
    assert column(table, "attempts") == ["1 of 2", "0 of 1"]
    assert column(table, "wall") == ["10.00", "10.00"]
    assert column(table, "join") == ["0.25", "n/a"]
    assert column(table, "not accounted for") == ["0.00", "n/a"]
    assert column(table, "in measured steps") == ["40.0 %", "n/a"]


SCRIPTED = Scripted(step_time_s_per_rank=(0.1,))


@pytest.mark.parametrize(
    "stored", [result(), result(SCRIPTED).model_copy(update={"isolation": "script"})], ids=["of before", "a script"]
)
def test_without_any_account_show_says_so_and_a_report_has_no_table(stored: Result) -> None:
    (table,) = (part for part in show([stored], {}) if isinstance(part, Table) and part.title == "Wall time, s")
    assert column(table, "wall") == ["10.00"]
    assert column(table, "build") == column(table, "not accounted for") == column(table, "in measured steps") == ["n/a"]
    assert "Wall time, s" not in rendered([stored])


def test_what_was_not_launched_has_no_row() -> None:
    skipped = result(Skipped(reason="no"))
    assert account_of_each([skipped]).rows == ()
    assert len(account_of_each([skipped, accounted(result(), **WHOLE)]).rows) == 1
