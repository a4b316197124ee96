"""What each setting of the short report opens on the page."""

from examples import MACHINE, ok, result

from bench.report.tables.sections import Report


def test_details_of_a_row_are_those_of_its_machine() -> None:
    other = MACHINE.model_copy(update={"cpu": "Other CPU"})
    report = Report(results=[result(), result(ok((0.2,) * 3, (0.2,) * 3), machine=other)])
    rates = [[row[2] for row in details.parts[0].rows] for details in report.details]  # type: ignore[union-attr]
    assert rates == [["40.0"], ["20.0"]]
