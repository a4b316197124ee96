"""What every combination has to name: its backend and its batches. Pure."""

from collections.abc import Sequence

from bench.backends import BACKENDS
from bench.errors import InputError, near_miss
from bench.matrix.auto import Value
from bench.matrix.file import Batch, Matrix, as_list
from bench.matrix.yaml_file import dotted, place_of, show

Combination = dict[str, Value]


def batch_of(matrix: Matrix, combination: Combination) -> Value:
    """What one combination says of batches, unchecked; one that names none is measured at all of the matrix."""
    listed = Value(list(matrix.matrix.get("batch", [])), ("matrix", "batch"))
    given = combination.get("batch", listed)
    return listed if "batch" in matrix.matrix and given.key[0] == "defaults" else given


def batches(matrix: Matrix, combination: Combination) -> tuple[Batch, ...]:
    given = batch_of(matrix, combination)
    values = as_list(given.value)
    for value in values:
        if value != "probe" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(
                f"{show(value)} cannot be used",
                where=place_of(matrix.places, given.key),
                field=dotted(given.key),
                allowed="batches per rank, such as [1, 2, 4], or probe",
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
    given = combination.get("backend")
    known = [*BACKENDS, *matrix.configs]
    if given is None:
        raise _no_backend(matrix, combination, known)
    if given.value not in known:
        raise InputError(
            f"{show(given.value)} is not a backend",
            where=place_of(matrix.places, given.key),
            field=dotted(given.key),
            allowed=known,
            fix=near_miss(given.value, known),
        )
    return str(given.value)


def _no_backend(matrix: Matrix, combination: Combination, backends: Sequence[str]) -> InputError:
    """Told of the ``include`` entry, where that has made the combination."""
    keys = [value.key for value in combination.values()]
    entry = next((key[:2] for key in keys if key[0] == "include"), None)
    if entry is None or any(key[0] == "matrix" for key in keys):
        where = place_of(matrix.places, ("matrix",))
        return InputError("no backend is given", where=where, field="matrix.backend", allowed=backends)
    problem, fix = "no backend is given", "name one in the entry, or in defaults"
    foreign = [name for name, value in combination.items() if value.key[:2] == entry and name in matrix.matrix]
    if foreign:
        problem += f": the entry fits no combination of {', '.join(matrix.matrix)}, so it adds one"
        fix += f"; for more values of {foreign[0]} in every combination, list them under matrix.{foreign[0]}"
    where = place_of(matrix.places, entry)
    return InputError(problem, where=where, field=f"{dotted(entry)}.backend", allowed=backends, fix=fix)
