"""How many batches make one optimizer step: who may say it, and who may not. Pure."""

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from bench.errors import InputError
from bench.matrix import script
from bench.matrix.accelerate_file import ACCUMULATION, written_accumulation
from bench.matrix.combinations import Combination, Value
from bench.matrix.matrix_file import Matrix, Training, Values
from bench.matrix.yaml_file import Key, Places, dotted, place_of, refusal, show
from bench.records.cell import Cell

OWN: Key = ("train", "accumulate")


def refused(value: str, where: str | None, field: str) -> InputError:
    """The message of every refusal of gradient accumulation, wherever it was requested."""
    return InputError(
        f"{value}: gradient accumulation is refused here",
        where=where,
        field=field,
        fix="leave it out, and set train.accumulate in the matrix: the number of micro-batches of one optimizer step",
    )


def refuse(value: JsonValue, places: Places, key: Key = ()) -> None:
    """Raises InputError if the file sets accumulation by accelerate's name anywhere."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        here = (*key, part)
        if part == ACCUMULATION:
            raise refused(show(item), place_of(places, here), dotted(here))
        refuse(item, places, here)


def of_config(matrix: Matrix, backend: str, config: Values, combination: Combination) -> Combination:
    """`accumulate` as the accelerate config sets it. `accelerate config` writes 1, which leaves it to the matrix; a
    script says it itself.

    Raises:
        InputError: an axis, or a global batch, asks for something else.
    """
    own = written_accumulation(config)
    if matrix.command is not None or not isinstance(own, int) or own == 1:
        return {}
    whole = Value(matrix.train.global_batch, ("train", "global_batch"))
    for asked in (combination.get("accumulate"), combination.get("global_batch", whole)):
        if asked is not None and asked.value not in (None, own):
            raise refusal(
                f"{show(asked.value)} cannot be used with {backend}: its own config accumulates {own} micro-batches",
                matrix.places,
                asked.key,
                fix=f"exclude it for {backend}, or set its gradient_accumulation_steps to 1",
            )
    return {"accumulate": Value(own, OWN)}


def notes(matrix: Matrix, name: str, content: Values) -> Iterator[str]:
    """Where an own config says another number than counts."""
    own, train = written_accumulation(content), matrix.train
    if matrix.command is None:
        if "accumulate" in train.model_fields_set and own not in (1, "auto", train.accumulate):
            yield f"{name}: its own config sets {ACCUMULATION} {own}, and not train.accumulate {train.accumulate}"
    elif own not in (1, "1", "auto") and not script.accumulates(matrix):
        yield (
            f"{name}: its own {ACCUMULATION} {own} does not count in samples/s: if the script accumulates so,"
            f" hand it over as {{{ACCUMULATION}}}"
        )


def check(matrix: Matrix, trained: Training, train: Combination, ranks: int, *, searches: bool) -> None:
    """Raises InputError for a global batch beside `accumulate`, which follows from it, and for one that the ranks, or
    the candidates of a search, do not divide."""
    if (whole := trained.global_batch) is None:
        return
    given, several = train["global_batch"], train["accumulate"].key
    granularity, more = matrix.probe.granularity, dict[str, str]()
    if several != OWN or "accumulate" in matrix.train.model_fields_set:
        problem = f"cannot be used with {dotted(several)}: accumulation follows from the global batch and the batch"
        more["fix"] = "leave one of the two out"
    elif whole % ranks:
        problem, more["allowed"] = "cannot be shared evenly by the ranks", "a multiple of launch.num_processes"
    elif searches and whole // ranks % granularity:
        problem = (
            f"gives each rank {whole // ranks} samples, of which no multiple of probe.granularity {granularity} is a"
            " divisor"
        )
    else:
        return
    raise refusal(f"{show(given.value)} {problem}", matrix.places, given.key, **more)


def of_cell(matrix: Matrix, trained: Training, stored: Values, given: Combination) -> dict[str, Any]:
    """The fields of a cell that say it.

    Args:
        stored, given: the values that a script gets, and where they were given.
    """
    several = trained.accumulate if matrix.command is None else script.accumulation_of(matrix, stored, given)
    return {"gradient_accumulation_steps": several, "global_batch": trained.global_batch}


def axes_of(cell: Cell) -> Values:
    """The same by the names that an axis has."""
    several: Values = {} if cell.global_batch else {"accumulate": cell.gradient_accumulation_steps}
    return {"global_batch": cell.global_batch, **several}
