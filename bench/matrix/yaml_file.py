"""Reads YAML files as plain JSON values, with the place of each value for error messages, and writes them. Nothing is
executed."""

import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter

from bench.errors import InputError, near_miss
from bench.units import size

Key = tuple[str | int, ...]
"""The path to a value from the top of its document."""
Places = dict[Key, str]
"""Where each value was written: ``file:line``, or a command-line option."""

MAX_BYTES, MAX_VALUES, MAX_DEPTH, MAX_INT = 2**18, 10_000, 20, 2**63 - 1
CORE = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """The content of a file: JSON values, and where each was written."""

    data: JsonValue
    places: Places


def read(path: Path) -> Document:
    """Reads a YAML 1.2 file.

    Raises:
        InputError: the file cannot be read, is not YAML, or contains something else than JSON values (tags, dates, NaN,
            recursion).
    """
    text = read_text(path)
    if path.suffix == ".py":
        raise InputError("is a Python file", where=str(path), fix="give the matrix file, whose workload names it")
    return parse(text, lambda line: f"{path}:{line + 1}", str(path))


def read_text(path: Path, most_bytes: int = MAX_BYTES, kind: str = "a config") -> str:
    """The text of a UTF-8 file.

    Args:
        most_bytes: a larger file is rejected as too large to be ``kind``.

    Raises:
        InputError: the file does not exist, is a folder, is too large, cannot be read, or is not UTF-8.
    """
    if not path.is_file():
        if path.is_dir():
            raise InputError("is a folder; a file is needed", where=str(path))
        siblings = [] if "\0" in str(path) or not path.parent.is_dir() else [p.name for p in path.parent.glob("*.*")]
        raise InputError("no such file", where=str(path), fix=near_miss(path.name, siblings))
    try:
        if path.stat().st_size > most_bytes:
            raise InputError(f"is larger than {size(most_bytes)}, too large to be {kind}", where=str(path))
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8: the byte 0x{error.object[error.start]:02x} at offset {error.start}",
            where=str(path),
            fix="save the file as UTF-8",
        ) from error


def parse(text: str, line_place: Callable[[int], str], place: str) -> Document:
    """Parses YAML. ``line_place`` names a line (counted from 0) in errors, ``place`` the whole text.

    Raises:
        InputError: see `read`.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about anchors that are defined again
            node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not YAML: {error.problem or error.context}",
            where=line_place(mark.line) if mark else place,
            fix=_fix(str(error.problem)),
        ) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=place) from error
    except YAMLError as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", where=place) from error
    except Exception as error:  # ruamel raises ValueError, IndexError and others on some malformed texts
        raise InputError(f"is not YAML: {error}", where=place) from error
    places: Places = {(): place}
    return Document(None if node is None else _Values(line_place, places).of(node, (), ()), places)


def dump(value: JsonValue) -> str:
    """YAML of which `parse` makes the same value again. PyYAML writes version 1.1, in which 1e-4 is a text."""
    yaml, text = YAML(typ="safe", pure=True), io.StringIO()
    yaml.Representer = _Representer
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output, yaml.width = False, False, 2**16
    yaml.dump(value, text)
    return text.getvalue()


class _Representer(SafeRepresenter):  # type: ignore[misc]  # ruamel has no types
    pass


def _represent_text(representer: SafeRepresenter, text: str) -> ScalarNode:
    """Only between double quotes can line breaks of all kinds be escaped."""
    return representer.represent_scalar(CORE + "str", text, style=None if text.isprintable() else '"')


_Representer.add_representer(str, _represent_text)


def _fix(problem: str) -> str | None:
    """What to do about what YAML's parser says, which knows blocks and flows and not what was meant."""
    if "\\t" in problem:
        return "indent with spaces, not tabs"
    if "found '<block mapping start>'" in problem or "found '<block sequence start>'" in problem:
        return "indent all keys of one mapping alike, as the line before"
    if "expected ',' or" in problem:
        return "close each [ and {, and put a comma between values"
    if "found ']'" in problem or "found '}'" in problem:
        return "this bracket closes nothing: remove it"
    if "found '<scalar>'" in problem:
        return "put the whole value into one pair of quotation marks"
    return None


class _Values:
    """Converts YAML nodes to JSON values. It uses nodes because constructed objects have lost their tags and places."""

    def __init__(self, line_place: Callable[[int], str], places: Places) -> None:
        self.line_place = line_place
        self.places = places
        self.count = 0

    def of(self, node: Node, key: Key, above: tuple[Node, ...]) -> JsonValue:
        if key:
            self.places.setdefault(key, self.line_place(node.start_mark.line))
        self.count += 1
        if any(node is parent for parent in above):
            raise self.error(node, key, "an alias that contains itself")
        if self.count > MAX_VALUES:
            raise self.error(node, key, f"more than {MAX_VALUES:,} values, with aliases expanded")
        if len(above) > MAX_DEPTH:
            raise self.error(node, key, f"nested more than {MAX_DEPTH} levels deep")
        inside = (*above, node)
        match node:
            case ScalarNode():
                return self.scalar(node, key)
            case SequenceNode(tag=tag, value=items) if tag == CORE + "seq":
                return [self.of(item, (*key, index), inside) for index, item in enumerate(items)]
            case MappingNode(tag=tag, value=pairs) if tag == CORE + "map":
                return self.mapping(pairs, key, inside)
            case _:
                raise self.error(node, key, f"the tag {str(node.tag)!r} is not supported", "values, lists and mappings")

    def mapping(self, pairs: list[tuple[Node, Node]], key: Key, inside: tuple[Node, ...]) -> JsonValue:
        result: dict[str, JsonValue] = {}
        for name_node, node in pairs:
            name = self.scalar(name_node, key) if isinstance(name_node, ScalarNode) else None
            if not isinstance(name, str):
                written = name_node.value if isinstance(name_node, ScalarNode) else "a list or mapping"
                raise self.error(name_node, key, f"the key {written} is not text", "names of fields")
            if name in result:
                problem = f"{name!r} is given twice, first at {self.places[(*key, name)]}"
                raise self.error(name_node, (*key, name), problem)
            self.places[(*key, name)] = self.line_place(name_node.start_mark.line)
            result[name] = self.of(node, (*key, name), inside)
        return result

    def scalar(self, node: Node, key: Key) -> JsonValue:
        text = str(node.value)
        digits = text.replace("_", "")
        try:
            match str(node.tag).removeprefix(CORE):
                case "str" if not re.search("[\ud800-\udfff]", text):
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    number = int(digits, 0) if re.match(r"[-+]?0[box]", digits) else int(digits)
                    if abs(number) <= MAX_INT:
                        return number
                case "float" if math.isfinite(value := float(digits)):
                    return value
                case "timestamp":
                    raise self.error(node, key, f"{text} is a date", fix="quote it if it is meant as text")
                case "merge":
                    raise self.error(node, key, "merge keys (<<) are not supported", fix="write the fields out")
        except (ValueError, KeyError):
            pass
        problem = f"{shorten(repr(text))} is not a value that can be used"
        raise self.error(node, key, problem, "text, finite numbers below 2**63, true, false, null")

    def error(
        self, node: Node, key: Key, problem: str, allowed: str | None = None, fix: str | None = None
    ) -> InputError:
        where = self.line_place(node.start_mark.line)
        return InputError(problem, where=where, field=dotted(key) or None, allowed=allowed, fix=fix)


def parse_json(text: str, place: str) -> JsonValue:
    """Parses JSON. An error names the line after ``place``, unless that ends with one.

    Raises:
        InputError: it is no JSON, has a number that is none, or gives a key twice.
    """
    try:
        data: JsonValue = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        where = place if re.search(r":\d+$", place) else f"{place}:{error.lineno}"
        raise InputError(f"is not JSON: {error.msg}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON that can be used: {error}", where=place) from error
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _each_once(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    if len(found := dict(pairs)) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{show(twice)} is given twice, and only the last one would count")
    return found


def dotted(key: Key) -> str:
    """``matrix.backend[1]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def place_of(places: Places, key: Key) -> str | None:
    """Where ``key``, or the nearest value that contains it, was written."""
    return next((places[key[:end]] for end in range(len(key), -1, -1) if key[:end] in places), None)


def refusal(
    problem: str, places: Places, key: Key, *, allowed: Iterable[str] | str | None = None, fix: str | None = None
) -> InputError:
    """The error for what is written at ``key``."""
    return InputError(problem, where=place_of(places, key), field=dotted(key) or None, allowed=allowed, fix=fix)


def show(value: JsonValue) -> str:
    """A value as written in a file, cut to a readable length."""
    return shorten(repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def shorten(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def canonical(value: JsonValue) -> str:
    """The same text for equal values. ``true`` is not equal to 1; 1 and 1.0 are equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def suggest(name: str, paths: Iterable[str]) -> str | None:
    """``did you mean 'measure.steps'?`` for ``steps``: the closest dotted path, by the whole path or its last part."""
    leaves: dict[str, str] = {}
    for path in paths:
        leaves.setdefault(path.rpartition(".")[2], path)
    close = get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.6)
    return near_miss(name, leaves.values()) or (f"did you mean {leaves[close[0]]!r}?" if close else None)
