"""A file -> its rows, with the place of every value. Pure, except for reading the file."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.imported.fields import FIELDS, OPTION, UNITS_IN_WORDS
from bench.imported.names import fields_of, is_own
from bench.matrix.yaml_file import read_text, show
from bench.records.phases import STORED_PHASES
from bench.units import UNKNOWN

Values = dict[str, JsonValue]
UNSAID = ("", UNKNOWN, "-")
"""Table cells that mean unknown."""
MAX_BYTES = 2**26
"""Largest size of a file. Profilers may write every step."""


Names = Mapping[str, str]
"""Fields by the names that a file has for them: its columns, or keys with a dot for each inner object."""
NO_NAMES: Names = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Given:
    """The values of one row, including the common values that it does not set itself."""

    values: Values
    places: Mapping[str, str]
    where: str
    """The place of the row."""
    own: bool = False
    """Whether bench measured and wrote it: its figures need no check against each other."""

    def place(self, name: str) -> str:
        """Where a value was written; the place of the row if the value is missing."""
        return self.places.get(name, self.where)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The content of one file."""

    rows: tuple[Given, ...]
    not_read: tuple[str, ...] = ()
    """Keys and columns that an import has no place for."""


def read(path: Path, common: Given, renamed: Names = NO_NAMES) -> Table:
    """The rows of a CSV file, or of a JSON file whose name ends in ``.json``.

    Args:
        common: values for all rows that do not set them.
        renamed: names that the user has mapped to fields.

    Raises:
        InputError: the file cannot be read, is not in the format of its name, has no rows, or has an unknown column.
    """
    text = text_of(path)
    if path.suffix.lower() == ".json":
        return _read_json(text, str(path), common, renamed)
    return _read_csv(text, str(path), common, renamed)


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
        field, equals, theirs = (part.strip() for part in mapping.partition("="))
        where = f"--map {mapping}"
        if not equals or not field or not theirs:
            raise InputError(f"{mapping!r} has no field or no name", where=where, allowed="FIELD=NAME")
        _check_name(field, where)
        if theirs in names:
            raise InputError(f"{theirs!r} is mapped twice", where=where)
        names[theirs] = field
    return names


def _read_csv(text: str, where: str, common: Given, renamed: Names) -> Table:
    """Lines ``# name: value`` at the top apply to all rows. They are followed by the line of column names."""
    lines = io.StringIO(text, newline="").readlines()
    skipped = next((index for index, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), len(lines))
    common = _with(common, *_comments(lines[:skipped], where))
    reader = csv.reader(lines[skipped:], strict=True)
    header: list[str | None] | None = None
    rows: list[Given] = []
    not_read: list[str] = []
    begun, own = skipped, False
    try:
        for cells in reader:
            place = f"{where}:{begun + 1}"
            begun = skipped + reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                columns = [cell.strip() for cell in cells]
                fields, own = {**fields_of(columns), **renamed}, is_own(columns)
                header = _header([fields[column] for column in columns], place)
                not_read = [column for column in columns if fields[column] is None]
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"has {len(cells)} values, but there are {len(header)} columns",
                    where=place,
                    fix="leave an unknown value empty; quote a value that contains a comma",
                )
            values: Values = {
                name: cell.strip()
                for name, cell in zip(header, cells, strict=True)
                if name is not None and cell.strip() not in UNSAID
            }
            rows.append(_with(common, values, dict.fromkeys(values, place), place, own=own))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{where}:{begun + 1}") from error
    if not rows:
        raise InputError("is empty" if header is None else "has columns but no rows", where=where)
    return Table(rows=tuple(rows), not_read=tuple(not_read))


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


def _header(names: list[str | None], place: str) -> list[str | None]:
    if len(names) == 1 and re.search(r"[;\t]", names[0] or ""):
        raise InputError("the columns are not separated by commas", where=place, allowed="a comma between columns")
    for number, name in enumerate(names):
        if name is None:
            continue
        if not name:
            raise InputError(f"column {number + 1} has no name", where=place)
        _check_name(name, place)
        if name in names[:number]:
            raise InputError(f"the column {name!r} is given twice", where=place)
    return names


def _check_name(name: str, place: str) -> None:
    if name not in FIELDS and not re.fullmatch(OPTION, name):
        raise InputError(
            f"unknown field {name[:100]!r}",
            where=place,
            allowed=f"{UNITS_IN_WORDS}; fields of a matrix's workload, train and measure; workload.<any other>",
            fix=near_miss(name, FIELDS),
        )


def _with(
    common: Given, values: Values, places: Mapping[str, str], where: str | None = None, *, own: bool = False
) -> Given:
    if own and "source" not in {**common.values, **values}:
        values = {**values, "source": "bench report"}
    return Given(
        values={**values, **{name: value for name, value in common.values.items() if name not in values}},
        places={**common.places, **places},
        where=where or common.where,
        own=own,
    )


def _read_json(text: str, where: str, common: Given, renamed: Names) -> Table:
    data = _json(text, where)
    entries = data if isinstance(data, list) else [data]
    if not entries or not all(isinstance(entry, dict) and entry for entry in entries):
        raise InputError(f"holds {show(data)}", where=where, allowed="an object of figures, or a list of such objects")
    places = [where if entry is data else f"{where}[{index}]" for index, entry in enumerate(entries)]
    rows, not_read = [], []
    for entry, place in zip(entries, places, strict=True):
        assert isinstance(entry, dict)
        values, unread = profile(entry, place, renamed)
        not_read += unread
        rows.append(_with(common, values, dict.fromkeys(values, place), place, own=is_own(list(entry))))
    return Table(rows=tuple(rows), not_read=tuple(dict.fromkeys(not_read)))


def object_in(text: str, where: str) -> Values:
    """The JSON object in ``text``.

    Raises:
        InputError: it is torn, is no JSON, or holds another value.
    """
    data = _json(text, where)
    if not isinstance(data, dict):
        raise InputError(f"holds {show(data)}", where=where, allowed="an object of figures")
    return data


def _json(text: str, where: str) -> JsonValue:
    try:
        data: JsonValue = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", where=f"{where}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON that can be used: {error}", where=where) from error
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _once(pairs: list[tuple[str, JsonValue]]) -> Values:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{show(twice)} is given twice")
    return values


def profile(entry: Values, place: str, renamed: Names = NO_NAMES) -> tuple[Values, list[str]]:
    """The fields in a profiler's object, and the keys that are not fields."""
    values: Values = {}
    unread: list[str] = []
    means_s = entry.get("phase_means_s")
    if means_s is not None:
        if not isinstance(means_s, dict):
            raise InputError(
                f"{show(means_s)} cannot be used", where=place, field="phase_means_s", allowed="seconds by phase"
            )
        values |= {f"{name}_s": mean_s for name, mean_s in means_s.items() if name in STORED_PHASES}
        unread += [f"phase_means_s.{name}" for name in means_s if name not in STORED_PHASES]
    leaves = entry if is_own(list(entry)) else dict(_leaves(entry, renamed))
    fields = {**fields_of(list(leaves)), **renamed}
    for key, value in leaves.items():
        if value is None:
            continue
        name = fields[key]
        if name is None or (name not in FIELDS and not re.fullmatch(OPTION, name)):
            unread.append(key)
        elif name in values:
            raise InputError(f"{name!r} is given twice", where=place, field=key)
        else:
            values[name] = value
    return values, unread


def _leaves(entry: Values, renamed: Names) -> Iterator[tuple[str, JsonValue]]:
    """Keys and values without null; those of inner objects with a dot, ``timing.step_s``."""
    for key, value in entry.items():
        if value is None or (key == "phase_means_s" and key not in renamed):
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
