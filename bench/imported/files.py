"""A file -> its rows, with the place of every value. Pure, except for reading the file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.imported import fields, tables
from bench.imported.fields import FIELDS, NOTE, OPTION, UNITS_IN_WORDS, Expected
from bench.imported.names import BYTES as UNITS
from bench.imported.names import GPUS, RATE, Meaning, backend_of, fields_of, is_own, meaning, rate_of
from bench.imported.tables import Grid
from bench.matrix.yaml_file import parse_json, read_text, show
from bench.records.phases import STORED_PHASES
from bench.records.stated import BYTES, FIGURES, RESULTS
from bench.units import UNKNOWN

Value = TypeVar("Value")
Values = dict[str, JsonValue]
UNSAID = ("", UNKNOWN, "na", "-", "\u2013", "\u2014", "?")
"""Table cells that mean unknown, in lower case."""
MAX_BYTES = 2**26
"""Largest size of a file. Profilers may write every step."""
LONGEST_NOTE = 200

OOM = r"(cuda |gpu )?(oom|out[ -]of[ -]memory)( error)?|x|✗|❌"
FAILED = r"(?i)\b(error|fail(ed|s|ure)?|crash(ed|es)?)\b"
"""What stands in the place of a figure where there is none."""

Names = Mapping[str, str]
"""Fields by the names that a file has for them: its columns, or keys with a dot for each inner object."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The values of one row, including the common values that it does not set itself."""

    values: Values
    places: Mapping[str, str]
    where: str
    """The place of the row."""
    own: bool = False
    """Whether bench measured and wrote it: its figures need no check against each other."""
    unknown: Values = field(default_factory=dict)
    """Values of columns whose meaning bench does not know."""
    notes: Values = field(default_factory=dict)
    """What is kept as it was written: figures that bench has no place for, and numbers that are not exact."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The fields of columns that have other names, by these names."""
    unclear: Mapping[str, str | None] = field(default_factory=dict)
    """Columns of memory that may be allocated or reserved, and the end of the fields that read them: ``gb``. None: no
    field has their unit."""
    of_table: bool = False
    """Whether somebody chose its columns. A JSON file holds whatever its program had."""

    def place(self, name: str) -> str:
        """Where a value was written; the place of the row if the value is missing."""
        return self.places.get(name, self.where)

    def wrong(self, name: str, problem: str, *, allowed: str | None = None, fix: str | None = None) -> InputError:
        """The error of a value."""
        return InputError(problem, where=self.place(name), field=name, allowed=allowed, fix=fix)

    def read(self, name: str, parse: Callable[[JsonValue], Value]) -> Value | None:
        """The parsed value of a field; None if the row does not have it.

        Raises:
            InputError: it cannot be used.
        """
        if name not in self.values:
            return None
        try:
            return parse(self.values[name])
        except Expected as error:
            raise self.wrong(name, f"{show(self.values[name])} cannot be used", allowed=str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Table:
    """The content of one file."""

    rows: tuple[Given, ...]
    not_read: tuple[str, ...] = ()
    """Columns of bench's own tables that follow from others."""


def read(path: Path, common: Given, renamed: Names, number: int | None) -> Table:
    """The rows of a file: of a table in csv, tsv, Markdown or HTML, or of JSON. See `bench.imported.read_all`.

    Raises:
        InputError: the file cannot be read, is not in the format of its name, or has no rows.
    """
    ending = path.suffix.lower()
    if ending in (".xlsx", ".xls", ".ods", ".numbers"):
        raise InputError("is a spreadsheet", where=str(path), fix="save the sheet as csv, and import that file")
    text, where = text_of(path).removeprefix("\ufeff"), str(path)
    if ending in (".json", ".jsonl", ".ndjson"):
        return _of_json(text, where, common, renamed)
    if ending in (".html", ".htm", ".md", ".markdown", ".mdx", ".rst", ".txt"):
        grids = [] if ending in (".html", ".htm") else tables.markdown(text, where)
        return _of_grid(_chosen(grids or tables.html(text, where), where, number, renamed), common, renamed)
    lines = text.splitlines(keepends=True)
    skipped = next((index for index, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), len(lines))
    if skipped and _is_header(lines[skipped - 1], "".join(lines[skipped : skipped + 1])):
        skipped -= 1
        lines[skipped] = lines[skipped].replace("#", "", 1)
        text = "".join(lines)
    common = _with(common, *_comments(lines[:skipped], where))
    return _of_grid(tables.separated(text, where, skipped), common, renamed)


def _is_header(comment: str, first: str) -> bool:
    """Whether a comment names the columns of the line below it, as numpy's `savetxt` writes them."""
    delimiter = max(",;\t", key=first.count)
    numbers = [any(fields.amount(cell.strip()) for cell in line.split(delimiter)) for line in (comment, first)]
    return 0 < first.count(delimiter) == comment.count(delimiter) and numbers == [False, True]


def text_of(path: Path) -> str:
    """The text of a file of figures.

    Raises:
        InputError: the file cannot be read or is too large.
    """
    return read_text(path, MAX_BYTES, "a table of figures")


def given_on_the_command_line(settings: Sequence[str]) -> Given:
    """``num_processes=8 source="our wiki"``: values for all rows of all files that do not set them."""
    values: Values = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not name or not value:
            raise InputError(f"{setting!r} has no name or no value", where="command line", allowed="name=value")
        _check_name(name, setting)
        values[name] = value
    return Given(values=values, places=dict.fromkeys(values, "command line"), where="command line")


def mapped(mappings: Sequence[str]) -> Names:
    """``step_time_s=timing.step``: a field, and the name that files have for it."""
    names: dict[str, str] = {}
    for mapping in mappings:
        name, equals, theirs = (part.strip() for part in mapping.partition("="))
        where = f"--map {mapping}"
        if not equals or not name or not theirs:
            raise InputError(f"{mapping!r} has no field or no name", where=where, allowed="FIELD=NAME")
        if name != NOTE:
            _check_name(name, where)
        if theirs in names:
            raise InputError(f"{theirs!r} is mapped twice", where=where)
        names[theirs] = name
    return names


def _comments(lines: Sequence[str], where: str) -> tuple[Values, dict[str, str]]:
    values: Values = {}
    places: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if match := re.fullmatch(r"#\s*([\w.]+):\s+(\S.*)", line.strip()):
            name, place = match[1], f"{where}:{number}"
            _check_name(name, place)
            if name in values:
                raise InputError(f"{name!r} is given twice, first at {places[name]}", where=place)
            values[name], places[name] = match[2].strip(), place
    return values, places


def _check_name(name: str, place: str) -> None:
    if not _is_field(name):
        known = meaning(name)
        raise InputError(
            f"unknown field {name[:100]!r}",
            where=place,
            allowed=f"{UNITS_IN_WORDS}; fields of a matrix's workload, train and measure; workload.<any other>",
            fix=f"write {known.field}" if known and _is_field(known.field) else near_miss(name, FIELDS),
        )


def _is_field(name: str) -> bool:
    return name in FIELDS or re.fullmatch(OPTION, name) is not None


def _with(common: Given, values: Values, places: Mapping[str, str]) -> Given:
    return Given(
        values={**values, **{name: value for name, value in common.values.items() if name not in values}},
        places={**common.places, **places},
        where=common.where,
    )


# Tables


def _chosen(grids: Sequence[Grid], where: str, number: int | None, renamed: Names) -> Grid:
    """The table that ``number`` names, or the only one with figures."""
    if not grids:
        raise InputError("has no table", where=where)
    with_figures = [grid for grid in grids if any(_figures_in(column, renamed) for column in grid.columns)]
    found = grids if number is not None or not with_figures else with_figures
    if number is None and len(found) == 1:
        return found[0]
    if number is not None and 1 <= number <= len(grids):
        return grids[number - 1]
    listed = [f"{grids.index(grid) + 1} ({grid.place}: {', '.join(grid.columns)[:80]})" for grid in found]
    said = f"has no table {number}" if number else f"has {len(found)} tables{' of figures' if with_figures else ''}"
    raise InputError(said, where=where, allowed=listed[:12], fix="choose one with --table N")


def _figures_in(column: str, renamed: Names) -> set[str | None]:
    exact = renamed.get(column) or fields_of([column])[column]
    return _possible(column, exact) & {*_MEASURED, RATE}


def _possible(column: str, exact: str | None) -> set[str | None]:
    """The fields that a column may hold, by its exact name and by what it means."""
    known = meaning(column)
    return {exact, known.field if known else None}


_MEASURED = {*RESULTS, *fields.RATES} - {"capacity_share"}
_NUMBERS = {*_MEASURED, *fields.COUNTS, RATE, GPUS}
"""Fields in whose values a comma can only belong to a number."""


def _of_grid(grid: Grid, common: Given, renamed: Names) -> Table:
    columns, own = grid.columns, is_own(grid.columns)
    for index, column in enumerate(columns):
        if not column:
            raise InputError(f"column {index + 1} has no name", where=grid.place)
        if column in columns[:index]:
            raise InputError(f"the column {column!r} is given twice", where=grid.place)
    exact = {**fields_of(columns), **renamed}
    lines = _with_points(grid, [column for column in columns if _possible(column, exact[column]) & _NUMBERS])
    rows = []
    for place, cells in lines:
        entry: Values = {
            column: cell for column, cell in zip(columns, cells, strict=True) if cell.lower() not in UNSAID
        }
        rows.append(_row(entry, exact, common, place, own=own, of_table=not own))
    if not rows:
        raise InputError("has columns but no rows", where=grid.place)
    return Table(rows=tuple(rows), not_read=tuple(column for column in columns if exact[column] is None))


def _with_points(grid: Grid, columns: Sequence[str]) -> Sequence[tuple[str, Sequence[str]]]:
    """The lines with a point before decimals.

    Raises:
        InputError: some numbers have a comma there, and of another one it is not clear.
    """
    indices = [grid.columns.index(column) for column in columns]
    unit = r"\s*[^\d\s.,].*|"
    numbers = [(place, cells[index]) for place, cells in grid.lines for index in indices]
    commas = [(place, cell) for place, cell in numbers if re.fullmatch(rf"{fields.DECIMAL_COMMA}({unit})", cell)]
    points = [cell for _, cell in numbers if re.fullmatch(rf"[~≈]?\s*[\d,]*\.(\d{{1,2}}|\d{{4,}})({unit})", cell)]
    unclear = [pair for pair in numbers if re.fullmatch(rf"[1-9]\d{{0,2}}[.,]\d{{3}}({unit})", pair[1])]
    if points and not commas:
        return grid.lines
    wrong = commas if points else unclear if commas else []
    if grid.decimal_comma and not wrong:
        elsewhere = any(re.fullmatch(fields.DECIMAL_COMMA, cell) for _, cells in grid.lines for cell in cells)
        wrong = [pair for pair in unclear if "," in pair[1] or (elsewhere and not commas)]
    if wrong:
        place, cell = wrong[0]
        raise InputError(
            f"{cell!r} is ambiguous: its comma or point may stand before thousands or before decimals",
            where=place,
            fix="write all numbers of the table with a decimal point, and without separators of thousands",
        )
    if not commas:
        return grid.lines

    def pointed(index: int, cell: str) -> str:
        return cell.replace(".", "").replace(",", ".") if index in indices else cell

    return [(place, [pointed(index, cell) for index, cell in enumerate(cells)]) for place, cells in grid.lines]


# One row


def _row(
    entry: Values,
    exact: Mapping[str, str | None],
    common: Given,
    where: str,
    *,
    own: bool = False,
    of_table: bool = False,
    start: Values | None = None,
) -> Given:
    """The fields, notes and unknown values of one row.

    Args:
        entry: its values by the names of columns, or of keys with dots.
        exact: the fields of names that need no interpretation; None for what is not read.
        start: fields that were read in another way.
    """
    names = {name: said for name in entry if (said := exact.get(name, name)) is not None}
    notes = {name: entry[name] for name, said in names.items() if said == NOTE}
    values = _exact(entry, {name: said for name, said in names.items() if _is_field(said)}, where, start or {})
    unknown: Values = {}
    named: dict[str, str] = {}
    unclear: dict[str, str | None] = {}
    for name in (name for name, said in names.items() if said != NOTE and not _is_field(said)):
        if (known := meaning(name if of_table else name.rpartition(".")[2])) is None:
            unknown[name] = entry[name]
            continue
        found, kept = _found(entry[name], known, where, name)
        fresh = {field: value for field, value in found.items() if not _taken(field, values)}
        values |= fresh
        if "peak_bytes" in fresh:
            unclear[name] = _unit(entry[name], known)
        elif read := [field for field in fresh if field not in (name, "outcome", "reason")]:
            named[name] = " and ".join(read)
        if kept or fresh.keys() < found.keys():
            notes[name] = entry[name]
    if values.get("outcome") in ("oom", "failed") and "outcome" not in names.values():
        values = {name: value for name, value in values.items() if name not in _MEASURED}
        notes |= {name: value for name, value in entry.items() if names.get(name) in _MEASURED and not _ended(value)}
    if own and "source" not in {**common.values, **values}:
        values["source"] = "bench report"
    return replace(
        _with(common, values, dict.fromkeys(values, where)),
        where=where,
        own=own,
        unknown=unknown,
        notes=notes,
        named=named,
        unclear=unclear,
        of_table=of_table,
    )


def _exact(entry: Values, names: Mapping[str, str], where: str, start: Values) -> Values:
    """The values of columns that have the name of a field."""
    values = dict(start)
    for name, said in names.items():
        if said in values:
            raise InputError(f"{said!r} is given twice", where=where, field=name)
        outcome = _ended(entry[name]) if said in _MEASURED and "outcome" not in names.values() else None
        values |= outcome or {said: entry[name]}
    return values


def _taken(name: str, values: Values) -> bool:
    """Whether a row has this figure already, perhaps in another unit."""
    stems = [each.rpartition("_")[0] for each in values if each in FIGURES]
    return name in values or (name in FIGURES and name.rpartition("_")[0] in stems)


def _ended(value: JsonValue) -> Values | None:
    """The outcome that a text in the place of a figure states."""
    if not isinstance(value, str):
        return None
    if re.fullmatch(OOM, value.strip().lower()):
        return {"outcome": "oom"}
    return {"outcome": "failed", "reason": value} if re.search(FAILED, value) else None


def _found(value: JsonValue, known: Meaning, where: str, name: str) -> tuple[Values, bool]:
    """The fields that a value of a published table gives, and whether its own words must be kept beside them."""
    if outcome := _ended(value) if known.field in _MEASURED or known.field == RATE else None:
        return outcome, False
    try:
        if known.field == GPUS:
            return _gpus(value), False
        if known.field == "backend":
            backend = backend_of(fields.text(value))
            return {"backend": backend}, backend != str(value).lower()
        if known.field in (RATE, "samples_per_s", *fields.RATES):
            found = _rate(value, known.field)
            return found, found != {"samples_per_s": value}
        if known.units is not None:
            return _quantity(value, known, known.units)
    except Expected as error:
        raise InputError(f"{show(value)} cannot be used", where=where, field=name, allowed=str(error)) from error
    return {known.field: value}, False


def _gpus(value: JsonValue) -> Values:
    """``8``, ``A100``, or ``2 x A100``."""
    several = re.fullmatch(r"(\d+)(?:\.0)?(?:\s*[x×*]\s*(\S.*))?", str(value).strip())
    if several is None:
        return {"accelerator": fields.text(value)}
    return {"num_processes": int(several[1]), **({"accelerator": several[2]} if several[2] else {})}


def _rate(value: JsonValue, field: str) -> Values:
    """The unit of the value counts, if it has one."""
    number = fields.amount(value)
    named = rate_of(number.unit) if number and number.unit else field
    if number is None or named is None:
        raise Expected("a number, alone or with a unit such as tokens/s or tokens/s/GPU")
    return {named: value if number.bare else number.value} if number.value and named != RATE else {}


def _quantity(value: JsonValue, known: Meaning, units: Mapping[str, float]) -> tuple[Values, bool]:
    number = fields.amount(value)
    if number and not number.unit and known.scale is None:
        in_bytes = known.field.endswith("_bytes") and isinstance(value, int) and value >= 2**20
        return ({known.field: value} if in_bytes else {}), True
    size = fields.quantity(value, known.scale or 1.0, units=units)
    exact = number is not None and number.bare and known.field != "peak_bytes"
    return {known.field: size}, not exact


def _unit(value: JsonValue, known: Meaning) -> str | None:
    """The end of a field that reads a column of memory as it is written."""
    number = fields.amount(value)
    if number and number.unit:
        return BYTES[0]  # any: the value's own unit counts
    return next((unit for unit in BYTES if UNITS[unit] == (known.scale or 1.0)), None)


# JSON


def _of_json(text: str, where: str, common: Given, renamed: Names) -> Table:
    rows, not_read = [], list[str]()
    for entry, place in _records(text, where):
        exact, leaves, start = _profile(entry, place, renamed)
        not_read += [key for key in leaves if exact[key] is None]
        rows.append(_row(leaves, exact, common, place, own=is_own(list(entry)), start=start))
    return Table(rows=tuple(rows), not_read=tuple(dict.fromkeys(not_read)))


def _records(text: str, where: str) -> list[tuple[Values, str]]:
    """The objects of a JSON text, each with its place: a list of them, one a line, or a table as pandas writes it."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if len(lines) > 1 and all(line.lstrip()[0] == "{" and line.rstrip()[-1] == "}" for _, line in lines):
        return [(object_in(line, f"{where}:{number}"), f"{where}:{number}") for number, line in lines]
    data = parse_json(text, where)
    entries = data if isinstance(data, list) else _of_columns(data) if isinstance(data, dict) else None
    if entries is None and isinstance(data, dict) and data:
        return [(data, where)]
    if not entries or not all(isinstance(entry, dict) and entry for entry in entries):
        raise InputError(f"holds {show(data)}", where=where, allowed="an object of figures, or a list of such objects")
    return [(entry, f"{where}[{index}]") for index, entry in enumerate(entries) if isinstance(entry, dict)]


def _of_columns(data: Values) -> list[JsonValue] | None:
    """The records of a table that is written by columns, or by the names of its rows; None for a single record."""
    columns, rows = data.get("columns"), data.get("data")
    if isinstance(columns, list) and isinstance(rows, list):
        return [dict(zip(map(str, columns), row, strict=False)) for row in rows if isinstance(row, list)]
    lists = [value for value in data.values() if isinstance(value, list)]
    if len(data) > 1 and len(lists) == len(data) and len({len(value) for value in lists}) == 1:
        return [{name: value[index] for name, value in zip(data, lists, strict=True)} for index in range(len(lists[0]))]
    inner = [value for value in data.values() if isinstance(value, dict)]
    if len(inner) < 2 or len(inner) < len(data) or len({tuple(value) for value in inner}) != 1:
        return None
    keys = list(inner[0])
    if all(key.isdigit() for key in keys):
        return [{name: value[key] for name, value in zip(data, inner, strict=True)} for key in keys]
    return [{"name": name, **value} for name, value in zip(data, inner, strict=True)]


def object_in(text: str, where: str) -> Values:
    """The JSON object in ``text``.

    Raises:
        InputError: it is torn, is no JSON, or holds another value.
    """
    data = parse_json(text, where)
    if not isinstance(data, dict):
        raise InputError(f"holds {show(data)}", where=where, allowed="an object of figures")
    return data


def profiled(entry: Values, place: str) -> Given:
    """The figures in an object that a program has written, by the names of bench, profilers, Trainer and others."""
    exact, leaves, start = _profile(entry, place, {})
    return _row(leaves, exact, Given(values={}, places={}, where=place), place, start=start)


def _profile(entry: Values, place: str, renamed: Names) -> tuple[dict[str, str | None], Values, Values]:
    """The fields of an object's keys, its leaves, and the fields that are not leaves."""
    start: Values = {}
    inner = entry
    means_s = entry.get("phase_means_s")
    if means_s is not None and "phase_means_s" not in renamed:
        if not isinstance(means_s, dict):
            raise InputError(
                f"{show(means_s)} cannot be used", where=place, field="phase_means_s", allowed="seconds by phase"
            )
        start |= {f"{name}_s": mean_s for name, mean_s in means_s.items() if name in STORED_PHASES}
        others: Values = {name: mean_s for name, mean_s in means_s.items() if name not in STORED_PHASES}
        inner = {**entry, "phase_means_s": others}
    start |= _history(entry)
    leaves = entry if is_own(list(entry)) else dict(_leaves(inner, renamed))
    leaves = {key: value for key, value in leaves.items() if value is not None}
    return {**fields_of(list(leaves)), **renamed}, leaves, start


def _history(entry: Values) -> Values:
    """samples/s of PEFT's comparison: of each interval the time in training, and the samples until its end. Its
    `train_time` is no such time, as it includes the evaluations."""
    info = entry.get("train_info")
    metrics = info.get("metrics") if isinstance(info, dict) else None
    entries = metrics if isinstance(metrics, list) else []
    steps = [each for each in entries if isinstance(each, dict) and "train time" in each]
    times = [number.value for each in steps if (number := fields.amount(each["train time"]))]
    samples = [number.value for each in steps if (number := fields.amount(each.get("train samples")))]
    if not times or len(times) != len(samples) or samples != sorted(samples) or sum(times) <= 0:
        return {}
    return {"samples_per_s": samples[-1] / sum(times)}


def _leaves(entry: Values, renamed: Names) -> Iterator[tuple[str, JsonValue]]:
    """Keys and values without null; those of inner objects with a dot, ``timing.step_s``."""
    for key, value in entry.items():
        if value is None:
            continue
        if isinstance(value, dict) and key not in renamed and key not in FIELDS:
            yield from _leaves({f"{key}.{inner}": each for inner, each in value.items()}, renamed)
        else:
            yield key, value


def value_at(entry: Values, key: str, where: str) -> JsonValue:
    """The value of a key; a dot leads into an inner object: ``timing.step_s``.

    Raises:
        InputError: there is no such key.
    """
    value: JsonValue = entry
    for part in [key] if key in entry else key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise InputError(f"has no key {key!r}", where=where, allowed=list(entry), fix=near_miss(key, list(entry)))
        value = value[part]
    return value
