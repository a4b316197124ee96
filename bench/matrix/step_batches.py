"""How many batches make one optimizer step: who may say it, and who may not. Pure."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from bench.backends.registry import section
from bench.errors import InputError
from bench.matrix import script
from bench.matrix.combinations import Combination, Value
from bench.matrix.matrix_file import Matrix, Values
from bench.matrix.yaml_file import Key, Places, dotted, place_of, refusal, show
from bench.records.cell import MOST_MICRO_BATCHES, Train
from bench.records.script import CALLED_MICRO_BATCHES, MICRO_BATCHES, Script

OWN: Key = ("train", "accumulate")
VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises InputError if a variable of accelerate turns accumulation on."""
    if (steps := environment.get(VARIABLE, "1")) != "1":
        raise _refused(repr(steps), "environment", VARIABLE)


def _refused(value: str, where: str | None, field: str) -> InputError:
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
        if part == MICRO_BATCHES:
            raise _refused(show(item), place_of(places, here), dotted(here))
        refuse(item, places, here)


def check_written(value: JsonValue, places: Places, key: Key, *others: str) -> None:
    """Raises InputError if accelerate or DeepSpeed would fail on the accumulation of their own config.

    Args:
        others: words that are allowed, too.
    """
    if value not in others and (type(value) is not int or value < 1):
        allowed = " or ".join(["a whole number, at least 1", *others])
        raise refusal(f"{show(value)} fails in accelerate or DeepSpeed", places, key, allowed=allowed)


def _written(config: Values) -> JsonValue:
    """The micro-batches of a step that a config names, for DeepSpeed; 1 if it names none."""
    given = section(config, "deepspeed_config")
    return (section(given, "deepspeed_config_file") or given).get(MICRO_BATCHES, 1)


def of_config(matrix: Matrix, backend: str, config: Values, combination: Combination) -> Combination:
    """`accumulate` as the accelerate config sets it. `accelerate config` writes 1, which leaves it to the matrix; a
    script says it itself.

    Raises:
        InputError: an axis, or a global batch, asks for something else.
    """
    own = _written(config)
    if matrix.command is not None or not isinstance(own, int) or own == 1:
        return {}
    whole = Value(matrix.train.global_batch, ("train", "global_batch"))
    several, whole = combination.get("accumulate", Value(own, OWN)), combination.get("global_batch", whole)
    for asked, allowed in ((several, own), (whole, None)):
        if asked.value != allowed:
            other = f"exclude it for {backend}" if asked.key[0] != "train" else "leave it out"
            raise refusal(
                f"{show(asked.value)} cannot be used with {backend}: its own config accumulates {own} micro-batches",
                matrix.places,
                asked.key,
                fix=f"{other}, or set its {MICRO_BATCHES} to 1",
            )
    return {"accumulate": Value(own, OWN)}


def notes(matrix: Matrix, name: str, content: Values) -> Iterator[str]:
    """Where an own config says another number than counts."""
    own, train = _written(content), matrix.train
    if matrix.command is None:
        if "accumulate" in train.model_fields_set and own not in (1, "auto", train.accumulate):
            yield f"{name}: its own config sets {MICRO_BATCHES} {own}, and not train.accumulate {train.accumulate}"
    elif own not in (1, "1", "auto") and not _is_handed_over(matrix):
        yield (
            f"{name}: its own {MICRO_BATCHES} {own} does not count in samples/s: if the script accumulates so,"
            f" hand it over as {{{MICRO_BATCHES}}}"
        )


def check(matrix: Matrix, trained: Train, train: Combination, ranks: int, *, searches: bool) -> None:
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


def with_script(train: Train, matrix: Matrix, stored: Values, given: Combination) -> Train:
    """``train``, where a script says itself how many batches make one step.

    Args:
        stored, given: the values that a script gets, and where they were given.
    """
    command = script.script_of(matrix)
    if command is None:
        return train
    return train.model_copy(update={"accumulate": _of_script(command, matrix, stored, given)})


def _is_handed_over(matrix: Matrix) -> bool:
    """Whether the command of a script says how many micro-batches make one optimizer step."""
    command = script.script_of(matrix)
    return command is not None and command.micro_batches(dict.fromkeys(command.placeholders)) is not None


def _of_script(command: Script, matrix: Matrix, options: Values, given: Combination) -> int:
    """Micro-batches of one optimizer step, as far as the matrix says.

    Raises:
        InputError: the value is no number of them, or two options disagree.
    """
    name, steps = command.micro_batches(options) or ("", 1)
    key = given[name].key if name in given else ("command",)
    if others := [other for other in options if other.lower() in CALLED_MICRO_BATCHES and options[other] != steps]:
        raise refusal(
            f"{name} {show(steps)} and {others[0]} {show(options[others[0]])} both say how many batches make one step",
            matrix.places,
            key,
            fix="hand over one of them",
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_MICRO_BATCHES:
        raise refusal(
            f"{show(steps)} cannot be used: a command's {name} is how many batches make one optimizer step",
            matrix.places,
            key,
            allowed=f"a whole number from 1 to {MOST_MICRO_BATCHES}",
            fix="give the axis another name if it means something else",
        )
    return steps
