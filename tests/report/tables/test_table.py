"""Tables made of rows and a description of their columns."""

from operator import itemgetter

from bench.report.tables.table import Column, of_part, table_of, without_repeats

COLUMNS: list[Column[int]] = [
    Column("number", str, numeric=True, bold=lambda number: number > 1),
    Column("parity", lambda number: "even" if number % 2 == 0 else "odd", tone=lambda n: "bad" if n % 2 else None),
    Column("remark", lambda number: "big" * (number > 1), prose=True),
]


def test_all_that_a_table_says_of_a_column_comes_from_its_description() -> None:
    table = table_of("Numbers", iter([1, 2]), COLUMNS, notes=["a note"], name=lambda number: f"row {number}")
    assert table.headers == ("number", "parity", "remark")
    assert table.rows == (("1", "odd", ""), ("2", "even", "big"))
    assert (table.numeric, table.prose) == ({"number"}, {"remark"})
    assert table.bold == {(1, "number")}
    assert table.tones == {(0, "parity"): "bad"}
    assert (table.row_names, table.notes) == (("row 1", "row 2"), ("a note",))


def test_columns_of_a_part_keep_everything_else() -> None:
    second = itemgetter(1)
    assert table_of("", [("a", 1), ("b", 2)], of_part(second, COLUMNS)) == table_of("", [1, 2], COLUMNS)


def test_equal_rows_are_shown_once() -> None:
    assert without_repeats(table_of("", [1, 1, 2], [Column("number", str)])).rows == (("1",), ("2",))
