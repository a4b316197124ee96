"""Axes, include and exclude -> combinations; the backend and the batches of each. Pure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from bench.backends import BACKENDS
from bench.errors import InputError, near_miss
from bench.matrix.matrix_file import Matrix, as_list
from bench.matrix.validation import check_names
from bench.matrix.yaml_file import Key, canonical, dotted, place_of, refusal, show
from bench.records.script import NO_BACKEND, Script

MAX_COMBINATIONS, MAX_ENTRIES = 10_000, 1_000
"""Limits: combinations of the axes, and entries of include or exclude. More is a mistake, and would take minutes."""


@dataclass(frozen=True)
class Value:
    """One value of a combination and the key that it was written at."""

    value: JsonValue
    key: Key

    @cached_property
    def text(self) -> str:
        """The same text for equal values."""
        return canonical(self.value)


Combination = dict[str, Value]
"""Field values by name."""


def combinations(matrix: Matrix) -> list[Combination]:
    """All combinations of a matrix, by GitHub's rules: see `bench.matrix.expand`."""
    axes = [
        [(name, Value(value, ("matrix", name, index))) for index, value in enumerate(values)]
        for name, values in matrix.matrix.items()
    ]
    check_count(matrix, math.prod(len(values) for values in axes))
    for section, entries in (("exclude", matrix.exclude), ("include", matrix.include)):
        check_count(matrix, len(entries), "entries", MAX_ENTRIES, section)
    originals = [dict(pairs) for pairs in itertools.product(*axes)] if axes else []
    kept = _without_excluded(matrix, originals)
    extended = [dict(original) for original in kept]
    added: list[Combination] = []
    for index, entry in enumerate(matrix.include):
        values = {name: Value(value, ("include", index, name)) for name, value in entry.items()}
        matching = [
            result
            for result, original in zip(extended, kept, strict=True)
            if all(name not in original or original[name].text == value.text for name, value in values.items())
        ]
        for result in matching:
            result.update(values)
        if not matching:
            added.append(values)
    if not extended and not added:
        problem = "every combination is excluded" if originals else "there is nothing to measure"
        fix = None if originals else "list at least one backend: backend: [ddp]"
        raise refusal(problem, matrix.places, ("exclude" if originals else "matrix",), fix=fix)
    defaults = {name: Value(value, ("defaults", name)) for name, value in matrix.defaults.items()}
    return [{**defaults, **combination} for combination in [*extended, *added]]


def _without_excluded(matrix: Matrix, originals: list[Combination]) -> list[Combination]:
    kept = originals
    for index, entry in enumerate(matrix.exclude):
        key: Key = ("exclude", index)
        if not entry:
            raise refusal("an empty entry would exclude everything", matrix.places, key)
        check_names(entry, key, list(matrix.matrix), matrix.places)
        values = {name: canonical(value) for name, value in entry.items()}
        absent = matrix.absent(entry)
        if absent and not matrix.changed.intersection(absent):
            problem = f"{show(entry)} matches nothing: {absent[0]} is never {show(entry[absent[0]])}"
            allowed = [show(value) for value in matrix.matrix[absent[0]]]
            raise refusal(problem, matrix.places, key, allowed=allowed)
        kept = [c for c in kept if any(c[name].text != value for name, value in values.items())]
    return kept


def check_count(
    matrix: Matrix, size: int, what: str = "combinations", most: int = MAX_COMBINATIONS, section: str = "matrix"
) -> None:
    if size > most:
        raise refusal(f"{size:,} {what} are too many", matrix.places, (section,), allowed=f"up to {most:,}")


def batch_of(matrix: Matrix, combination: Combination) -> Value:
    """The batches of one combination, not validated. A combination without a batch uses the whole batch axis."""
    listed = Value(list(matrix.matrix.get("batch", [])), ("matrix", "batch"))
    given = combination.get("batch", listed)
    return listed if "batch" in matrix.matrix and given.key[0] == "defaults" else given


def batches_of(matrix: Matrix, combination: Combination) -> tuple[int | str, ...]:
    """The batches of one combination.

    Raises:
        InputError: there is none, or a value is not a batch.
    """
    given = batch_of(matrix, combination)
    values = as_list(given.value)
    for value in values:
        if value != "probe" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise refusal(
                f"{show(value)} cannot be used",
                matrix.places,
                given.key,
                allowed="batches per rank, such as [1, 2, 4], or probe",
                fix=f"remove the quotes: {value}" if isinstance(value, str) and value.isdecimal() else None,
            )
    if not values:
        raise InputError(
            "no batch is given",
            where=place_of(matrix.places, ("matrix",)),
            field="matrix.batch",
            allowed="batches per rank, such as [1, 2, 4], or probe",
        )
    return tuple("probe" if value == "probe" else int(str(value)) for value in values)


def backend_of(matrix: Matrix, combination: Combination) -> str:
    """The backend of one combination.

    Raises:
        InputError: there is none, or it does not exist.
    """
    if matrix.command is not None and not Script(command=tuple(matrix.command)).uses("backend", "accelerate_config"):
        return NO_BACKEND
    given = combination.get("backend")
    allowed = [*BACKENDS, *matrix.configs]
    if given is None:
        raise _no_backend(matrix, combination, allowed)
    if given.value not in allowed:
        raise refusal(
            f"{show(given.value)} is not a backend",
            matrix.places,
            given.key,
            allowed=allowed,
            fix=near_miss(given.value, allowed),
        )
    return str(given.value)


def _no_backend(matrix: Matrix, combination: Combination, backends: Sequence[str]) -> InputError:
    """The error for a missing backend. It points at the ``include`` entry that created the combination, if one did."""
    keys = [value.key for value in combination.values()]
    entry = next((key[:2] for key in keys if key[0] == "include"), None)
    if entry is None or any(key[0] == "matrix" for key in keys):
        where = place_of(matrix.places, ("matrix",))
        return InputError("no backend is given", where=where, field="matrix.backend", allowed=backends)
    problem, fix = "no backend is given", "name one in the entry, or in defaults"
    foreign = [name for name, value in combination.items() if value.key[:2] == entry and name in matrix.matrix]
    if foreign:
        problem += f": the entry matches no combination of {', '.join(matrix.matrix)}, so it adds a new one"
        fix += f"; for more values of {foreign[0]} in every combination, list them under matrix.{foreign[0]}"
    where = place_of(matrix.places, entry)
    return InputError(problem, where=where, field=f"{dotted(entry)}.backend", allowed=backends, fix=fix)
