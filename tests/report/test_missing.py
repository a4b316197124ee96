"""Which planned attempts have no result yet."""

from examples import cell, in_few_steps, result

from bench.records.outcome import Oom, Skipped
from bench.records.plan import CellPlan
from bench.report.missing import missing
from bench.report.render import markdown
from bench.report.tables import sections
from bench.report.tables.header import not_measured
from bench.report.tables.sections import Report


def plan(backend: str, *batches: int | str) -> CellPlan:
    axes = {"backend": backend, "num_cams": 4}
    listed = tuple(batch for batch in batches if isinstance(batch, int))
    return CellPlan(cell=cell(backend), batches=listed, search="probe" in batches, axes=axes)


def test_only_batches_without_a_result_are_missing() -> None:
    measured = result(batch=2)
    plans = [plan("ddp", 2, 4), plan("fsdp", 2, "probe"), plan("zero2", 2)]
    found = missing([*plans[:2]], [measured, result(backend="fsdp", batch=2)])
    assert [(each.axes["backend"], each.batches, each.search) for each in found] == [
        ("ddp", (4,), False),
        ("fsdp", (), True),
    ]
    assert [each.cell_id for each in missing(plans, [])] == [each.cell.id for each in plans]


def test_a_few_steps_of_a_search_are_no_result_of_a_planned_batch() -> None:
    (cell_,) = missing([plan("ddp", 2)], [in_few_steps(result(batch=2))])
    assert cell_.batches == (2,)


def test_a_batch_with_fewer_launches_than_planned_is_listed_if_its_first_one_succeeded() -> None:
    asked = plan("ddp", 1, 2, 4, 8).model_copy(update={"launches": 3})
    one = [result(batch=batch) for batch in (1, 2)]
    oom = result(Oom(rank=0, phase="bwd", reason="full"), batch=4)
    again = [
        one[1].model_copy(update={"attempt": one[1].attempt.model_copy(update={"launch": number})}) for number in (2, 3)
    ]
    found = missing([asked.model_copy(update={"cell": one[0].attempt.cell})], [*one, *again[:1], oom])
    assert [(each.batches, each.launches) for each in found] == [((8,), None), ((1,), (1, 3)), ((2,), (2, 3))]
    assert [row[2] for row in not_measured(found).rows] == ["no result yet", "1 of 3 launches", "2 of 3 launches"]
    assert not missing([asked.model_copy(update={"batches": (2,), "cell": one[0].attempt.cell})], [*one, *again])


def test_the_report_of_an_interrupted_run_names_what_is_missing() -> None:
    found = missing([plan("ddp", 2, 4), plan("fsdp", "probe")], [result(batch=2)])
    table = not_measured(found)
    assert table.rows == (
        ("ddp, num_cams 4", "4", "no result yet"),
        ("fsdp, num_cams 4", "search", "no result yet"),
    )
    walked = missing([plan("ddp", 2, 4), plan("fsdp", "probe")], [result(batch=2)], (), {cell("fsdp").id: 64})
    assert [row[2] for row in not_measured(walked).rows] == [
        "no result yet",
        "no result yet; a walk trained batches up to 64",
    ]
    text = markdown.render(sections.Report(results=[result(batch=2)], missing=found).sections)
    assert "## Not measured" in text
    assert "## Not measured" not in markdown.render(sections.Report(results=[result(batch=2)]).sections)
    nothing = markdown.render(sections.Report(results=[], missing=found).sections)
    assert nothing.index("No results.") < nothing.index("## Not measured")


def test_a_cell_that_cannot_run_is_not_missing_its_search() -> None:
    skipped = result(Skipped(reason="not on a CPU"), batch=1)
    assert missing([plan("ddp", "probe")], [skipped]) == ()
    oom = result(Oom(rank=0, phase="bwd", reason="out of memory"), batch=2)
    later = skipped.model_copy(update={"attempt": skipped.attempt.model_copy(update={"batch_per_rank": 4})})
    (cell_,) = missing([plan("ddp", 2, 4, "probe")], [oom, later])
    assert (cell_.batches, cell_.search) == ((), True)


def test_a_file_that_cannot_be_read_is_named_in_the_report() -> None:
    torn = {"attempts/ddp-1/b2/result.json": "Invalid JSON"}
    text = markdown.render(Report(results=[result(batch=4)], unreadable=torn).sections)
    assert "attempts/ddp-1/b2/result.json" in text.partition("## Not measured")[2]
    assert "cannot be read: Invalid JSON" in text


def test_a_copy_without_scripts_names_none() -> None:
    kept, whole = (
        markdown.render(Report(results=[result(batch=4)], scripts=scripts).sections) for scripts in (False, True)
    )
    assert "command.sh" not in kept
    assert "command.sh" in whole
