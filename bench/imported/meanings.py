"""What the rows of a published table mean together: settings among unknown columns, batches, and rates. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from bench.errors import InputError, InputErrors, one_line
from bench.imported import fields
from bench.imported.contradictions import ROUNDING
from bench.imported.fields import Amount
from bench.imported.files import LONGEST_NOTE, Given, Values
from bench.imported.names import is_figure, plain, setting_of
from bench.matrix.yaml_file import canonical, show
from bench.records.base import not_finite
from bench.records.stated import RESULTS
from bench.units import counted, rate

MOST_NOTES = 200
"""Notes of a row. A program may write thousands of values into its JSON."""
WHOLE = 0.005
"""How far from a whole number a batch may be that follows from two rounded rates, relatively."""


def understood(rows: Sequence[Given]) -> tuple[list[Given], list[str]]:
    """The rows with what follows from their values, and sentences about what could not be used.

    Rows without any figure or outcome are left out.
    """
    full, named = _settings([row for row in rows if not _is_empty(row)])
    said: dict[str, int] = {}
    batched, found, errors = list[Given](), list[Given](), list[InputError]()
    for row in full:
        try:
            batched.append(_with_batch(row))
        except InputError as error:
            errors.append(error)
    for row in _with_global_batches(batched):
        try:
            derived, why = _with_rate(row)
        except InputError as error:
            errors.append(error)
            continue
        found.append(derived)
        if why:
            said[why] = said.get(why, 0) + 1
    if errors:
        raise InputErrors(errors)
    left = [f"left out without any figure: {counted(len(rows) - len(full), 'row')}"] if len(full) < len(rows) else []
    read = {column: field for row in rows for column, field in row.named.items()}
    names = ", ".join(f"{one_line(column, 60)} as {field}" for column, field in read.items())
    read_as = [f"read: {names}; --map FIELD=NAME reads one otherwise"] if names else []
    return found, [
        *read_as,
        *_unclear(rows),
        *named,
        *left,
        *(f"samples/s is n/a in {counted(n, 'row')}: {why}" for why, n in said.items()),
    ]


def _unclear(rows: Sequence[Given]) -> list[str]:
    """What reads columns of memory that do not say which memory."""
    told = []
    for column, unit in {column: unit for row in rows for column, unit in row.unclear.items()}.items():
        maps = [shlex.quote(f"{name}_{unit}={one_line(column, 60)}") for name in ("peak_allocated", "peak_reserved")]
        how = f"--map {maps[0]} or --map {maps[1]} says which" if unit else "put the word after memory in its name"
        which = "may be allocated or reserved memory, so at most its share of the capacity is shown"
        told.append(f"{one_line(column, 60)} {which}: {how}")
    return told


def _is_empty(row: Given) -> bool:
    """Whether nothing was measured in a row, not even the use of the device."""
    uses = (name for name in row.unknown if re.search(r"\b([mh]fu|[tgp]?flops?)\b", plain(name)))
    return row.of_table and not any((*map(_is_result, row.values), *uses, row.notes))


# Settings and notes


def _settings(rows: Sequence[Given]) -> tuple[list[Given], list[str]]:
    """Unknown columns as settings of the workload or as notes.

    In a table, words that differ between rows are a setting: rows that differ in it must not be compared as equals.
    Other columns become settings where rows would otherwise be equal. All else is kept as a note.
    """
    columns = dict.fromkeys(name for row in rows for name in row.unknown)
    told: dict[str, list[Given]] = {name: [row for row in rows if name in row.unknown] for name in columns}
    chosen = [
        name for name, having in told.items() if all(row.of_table for row in having) and _is_setting(name, having)
    ]
    candidates = [name for name in columns if name not in chosen and not is_figure(name)]
    while (before := _count_unlike(rows, chosen)) < len(rows):
        counts = {name: _count_unlike(rows, [*chosen, name]) for name in candidates if _may_separate(rows, name)}
        best = max(counts, key=counts.__getitem__, default=None)
        if best is None or counts[best] == before:
            break
        chosen.append(best)
        candidates.remove(best)
    as_settings = {name: setting_of(name) for name in chosen}
    result = []
    for row in rows:
        settings: Values = {as_settings[name]: value for name, value in row.unknown.items() if name in as_settings}
        others = {name: value for name, value in row.unknown.items() if name not in as_settings}
        notes = {name: note for name, value in {**others, **row.notes}.items() if (note := _note(value)) is not None}
        values, places = {**settings, **row.values}, {**dict.fromkeys(settings, row.where), **row.places}
        result.append(
            replace(row, values=values, places=places, unknown={}, notes=dict(list(notes.items())[:MOST_NOTES]))
        )
    names = [f"{one_line(name, 100)} ({setting})" for name, setting in as_settings.items()]
    return result, [f"taken for settings of the workload: {', '.join(names)}"] if names else []


def _is_setting(name: str, rows: Sequence[Given]) -> bool:
    values = [str(row.unknown[name]) for row in rows]
    words = [value for value in values if not ((number := fields.amount(value)) and number.bare)]
    return len(set(values)) > 1 and len(words) > len(values) / 2 and not is_figure(name) and not _links(values)


def _links(values: Sequence[str]) -> bool:
    return any(re.search(r"https?://|^\d{4}-\d\d-\d\d", value) for value in values)


def _may_separate(rows: Sequence[Given], name: str) -> bool:
    values = [row.unknown.get(name) for row in rows]
    plain = all(not isinstance(value, list | dict | float) and len(str(value)) <= LONGEST_NOTE for value in values)
    return plain and len({canonical(value) for value in values}) > 1 and not _links([str(value) for value in values])


def _count_unlike(rows: Sequence[Given], chosen: Sequence[str]) -> int:
    """How many rows there are of which no two have the same settings and the same values of ``chosen``."""
    kinds = set()
    for row in rows:
        settings = {name: value for name, value in row.values.items() if not _is_result(name)}
        kinds.add(canonical({**settings, **{f"?{name}": row.unknown.get(name) for name in chosen}}))
    return len(kinds)


def _is_result(name: str) -> bool:
    return name in RESULTS or name in (*fields.RATES, "outcome", "reason")


def _note(value: JsonValue) -> JsonValue:
    """A value as a note: short, and on one line. None for what is none: lists, and numbers that JSON cannot express."""
    if isinstance(value, str):
        return one_line(value, LONGEST_NOTE)
    return None if isinstance(value, list | dict) or not_finite(value, "") else value


# Batches and rates


def _number(row: Given, name: str) -> Amount | None:
    number = fields.amount(row.values.get(name))
    return number if number and number.value > 0 else None


def _rate_of(row: Given, name: str) -> Amount | None:
    """A rate, whose field is its unit.

    Raises:
        InputError: the value names a unit itself, such as ``12k`` or ``300 samples/min``.
    """
    number = _number(row, name)
    if number and number.unit:
        raise row.wrong(name, f"{show(row.values[name])} cannot be used", allowed="a number above 0, without a unit")
    return number


def _whole(row: Given, name: str) -> int | None:
    number = _number(row, name)
    return int(number.value) if number and not number.unit and number.value % 1 == 0 else None


def _with_batch(row: Given) -> Given:
    """The batch of a rank in one forward, from the samples of a step: global / ranks / micro-batches; and the
    micro-batches, where the batch is given.

    Raises:
        InputError: the batch, the ranks, the micro-batches and the global batch contradict each other.
    """
    batch, ranks, several, total = (
        row.read(name, fields.count) for name in ("batch", "num_processes", "accumulate", "global_batch")
    )
    given = {"global_batch": total} if total else {}
    if total is None and batch is None:
        total = _from_rates(row, (ranks or 1) * (several or 1))
    if total is None or ranks is None:
        return row
    if batch and total % (batch * ranks) == 0:
        several = several or total // (batch * ranks)
    each = total / ranks / (several or 1)
    if each % 1 or (batch and batch != each):
        raise row.wrong(
            "global_batch",
            f"{total} samples a step are impossible: {f'batch {batch} on ' if batch else ''}{ranks} ranks"
            f"{f', {several} micro-batches each,' if several else ''} "
            + (f"give {batch * ranks * (several or 1)}" if batch else "cannot share them evenly"),
            fix="batch is the number of samples of one rank in one forward; leave one of the two out",
        )
    counts = {"batch": int(each), **({"accumulate": several} if several else {}), **given}
    return replace(row, values={**row.values, **counts})


def _with_global_batches(rows: Sequence[Given]) -> list[Given]:
    """The rows with their global batch as a setting where micro-batches make it, and elsewhere with how many.

    They make it in bench's own tables, and where other rows of a workload, on as many ranks, have it in several ways.
    """
    ways: dict[tuple[JsonValue, ...], set[JsonValue]] = {}
    for row in rows:
        if row.values.keys() >= {"global_batch", "accumulate"}:
            whole, workload = row.values["global_batch"], canonical(row.values.get("workload"))
            ways.setdefault((whole, workload, _whole(row, "num_processes")), set()).add(row.values["accumulate"])
    made = {whole for (whole, *_), several in ways.items() if len(several) > 1}

    def settled(row: Given) -> Given:
        if "batch" not in row.values:
            return row  # without ranks, as its error says
        whole = row.values.get("global_batch")
        other = "accumulate" if whole and (row.own or whole in made) else "global_batch"
        return replace(row, values={name: value for name, value in row.values.items() if name != other})

    return [settled(row) for row in rows]


def _from_rates(row: Given, shares: int) -> int | None:
    """The samples of a step from samples/s and steps/s, if the two are exact enough for a whole batch in each share."""
    samples, steps = _rate_of(row, "samples_per_s"), _rate_of(row, "steps_per_s")
    if samples is None or steps is None:
        return None
    total = round(samples.value / steps.value / shares) * shares
    off = WHOLE + samples.step / samples.value / 2 + steps.step / steps.value / 2
    exact = total > 0 and abs(samples.value / steps.value / total - 1) <= off and total * off < shares / 2
    return total if exact else None


def _with_rate(row: Given) -> tuple[Given, str | None]:
    """Global samples/s, from whatever rate the row gives; or what is missing for it."""
    ranks, length = _whole(row, "num_processes"), _whole(row, "seq_len")
    values = {name: value for name, value in row.values.items() if name not in fields.RATES or name == "steps_per_s"}
    samples, missing = _rate_of(row, "samples_per_s"), list[str]()
    if each := _rate_of(row, "samples_per_s_per_gpu"):
        samples = samples or (_scaled(each, ranks) if ranks else None)
        missing += [] if ranks else ["num_processes"]
    tokens = _rate_of(row, "tokens_per_s")
    each = _rate_of(row, "tokens_per_s_per_gpu")
    if each and tokens is None:
        tokens = _scaled(each, ranks) if ranks else None
        missing += [] if ranks else ["num_processes"]
    elif each and tokens and ranks:
        _agree(row, "tokens_per_s", tokens, _scaled(each, ranks))
    if tokens or "tokens_per_s_per_gpu" in row.values:
        missing += [] if length else ["seq_len"]
    if tokens and length:
        from_tokens = _scaled(tokens, 1 / length)
        if samples:
            _agree(row, "samples_per_s", samples, from_tokens)
        samples = from_tokens  # tables round samples/s to whole numbers, even to 0
    steps = _rate_of(row, "steps_per_s")
    timed = any(name.startswith("step_time_") for name in values)
    if samples is None and steps and not timed:
        values["step_time_s"] = 1 / steps.value
    if samples is not None:
        values["samples_per_s"] = samples.value
    row = replace(row, values=values)
    if samples is not None or steps or timed or values.get("outcome") not in (None, "ok", "reported", "scripted"):
        return row, None
    if not missing:
        return row, "no column gives a rate or a time with its unit; --map step_time_ms=NAME reads one"
    return row, f"give {' and '.join(dict.fromkeys(missing))}, as a column, or as {missing[-1]}=... on the command line"


def _scaled(number: Amount, factor: float) -> Amount:
    return number._replace(value=number.value * factor, step=number.step * factor)


def _agree(row: Given, name: str, number: Amount, expected: Amount) -> None:
    if abs(number.value - expected.value) <= ROUNDING * expected.value + number.step + expected.step:
        return
    raise row.wrong(
        name,
        f"{rate(number.value)} is impossible: the tokens/s beside it give {rate(expected.value)}",
        fix="if the source contradicts itself, leave one of the two out",
    )


def of_script(values: Mapping[str, JsonValue], where: str) -> Values:
    """The same for what a script has written."""
    row, _ = _with_rate(Given(values=dict(values), places={}, where=where))
    return row.values
