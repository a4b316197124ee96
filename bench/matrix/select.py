"""``--backend``, ``--select`` and ``--exclude``: which cells and batches of an expanded matrix to measure. Pure."""

from collections.abc import Sequence

from pydantic import JsonValue

from bench.backends import BACKENDS
from bench.errors import InputError, near_miss
from bench.matrix import yaml_file
from bench.matrix.matrix_file import Values
from bench.matrix.yaml_file import canonical, show
from bench.records.base import settings_in
from bench.records.plan import CellPlan


def narrow(
    plans: Sequence[CellPlan], *, backend: str | None = None, select: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[CellPlan]:
    """The plans that pass the filters.

    Args:
        backend: ``fsdp,zero2``: keep the cells of these backends.
        select: ``backend=fsdp,zero2``: keep what has one of these values.
        exclude: ``backend=fsdp num_cams=4``: drop what meets all of these conditions.

    Raises:
        InputError: an unknown field, a value that no cell has, or a filter that matches nothing or removes everything.
    """
    points = [(plan, batch) for plan in plans for batch in plan.batch_axis]
    of_backend = [] if backend is None else [(f"--backend {backend}", f"backend={backend}")]
    for where, condition in [*of_backend, *((f"--select {text}", text) for text in select)]:
        met = _meets(points, condition, where)
        points = [point for point, keep in zip(points, met, strict=True) if keep]
        if not points:
            raise InputError("no cell is left", where=where, fix="a cell must match --backend and every --select")
    for text in exclude:
        where = f"--exclude {text!r}"
        conditions = [_meets(points, condition, where) for condition in settings_in(text)]
        dropped = [bool(met) and all(met) for met in zip(*conditions, strict=True)]
        if not any(dropped):
            raise InputError(
                "matches nothing", where=where, fix="an --exclude drops the cells that meet all its conditions"
            )
        points = [point for point, drop in zip(points, dropped, strict=True) if not drop]
        if not points:
            raise InputError("everything is excluded", where=where)
    batches: dict[str, list[int | str]] = {}
    for plan, batch in points:
        batches.setdefault(plan.cell.id, []).append(batch)
    return [plan.only(batches[plan.cell.id]) for plan in plans if plan.cell.id in batches]


def options(every: Sequence[CellPlan], kept: Sequence[CellPlan]) -> list[str]:
    """``--select``, ``backend=ddp``: what leaves just ``kept`` of ``every``. Nothing where all are kept, or where axes
    do not tell cells apart."""
    settings = {(plan.cell.id, batch): _settings(plan, batch) for plan in every for batch in plan.batch_axis}
    names = [*dict.fromkeys(name for plan in every for name in plan.axes), "batch"]
    points = {
        point: {name: canonical(of_point.get(name)) for name in names if name in of_point}
        for point, of_point in settings.items()
    }
    left = {(plan.cell.id, batch) for plan in kept for batch in plan.batch_axis}
    select, exclude, rest = list[str](), list[str](), set(points) - left
    for name in names:
        values = {points[point].get(name): settings[point].get(name) for point in points if point in left}
        out = {point for point in rest if points[point].get(name) not in values}
        if out:
            select.append(f"{name}={','.join(map(_written, values.values()))}")
            rest -= out
    for point, described in points.items():
        if point not in rest:
            continue
        conditions = described
        for name in names:  # the fewest conditions that no kept point meets
            fewer = {key: value for key, value in conditions.items() if key != name}
            if not any(fewer.items() <= points[other].items() for other in left):
                conditions = fewer
        rest = {other for other in rest if not conditions.items() <= points[other].items()}
        exclude.append(" ".join(f"{name}={_written(settings[point][name])}" for name in conditions))
    try:
        found = narrow(every, select=select, exclude=exclude)
    except InputError:
        return []
    if [(plan.cell.id, plan.batch_axis) for plan in found] != [(plan.cell.id, plan.batch_axis) for plan in kept]:
        return []
    given = (("--select", select), ("--exclude", exclude))
    return [word for option, texts in given for text in texts for word in (option, text)]


def _written(value: JsonValue) -> str:
    """A value as a condition holds it: without quotes where it reads the same."""
    if isinstance(value, str) and value.isidentifier() and yaml_file.parse(value, lambda _: "", "").data == value:
        return value
    return canonical(value)


def _meets(points: list[tuple[CellPlan, int | str]], condition: str, where: str) -> list[bool]:
    """For each point, whether it has one of the values of ``backend=fsdp,zero2``."""
    name, _, written = condition.partition("=")
    if not written:
        raise InputError(f"{condition!r} has no value", where=where, allowed="name=value or name=value,value")
    settings = [_settings(plan, batch) for plan, batch in points]
    names = list(dict.fromkeys(name for each in settings for name in each))
    if name not in names:
        raise InputError(f"unknown field {name!r}", where=where, allowed=names, fix=near_miss(name, names))
    wanted = yaml_file.parse(f"[{written}]", lambda _: where, where).data
    values = {canonical(each.get(name)): show(each.get(name)) for each in settings}
    for value in wanted if isinstance(wanted, list) else []:
        if canonical(value) not in values:
            several = settings_in(condition)
            if where.startswith("--select") and len(several) > 1:
                repeated = " ".join(f"--select {one}" for one in several)
                raise InputError(
                    f"{condition!r} is more than one condition", where=where, fix=f"repeat the option: {repeated}"
                )
            problem = f"matches nothing: {name} is never {show(value)}"
            exists = where.startswith("--backend") and value in BACKENDS
            fix = (
                f"to measure it anyway: --axis {condition}"
                if exists
                else near_miss(value, [str(each.get(name)) for each in settings])
            )
            raise InputError(problem, where=where, allowed=values.values(), fix=fix)
    chosen = {canonical(value) for value in wanted} if isinstance(wanted, list) else set()
    return [canonical(each.get(name)) in chosen for each in settings]


def _settings(plan: CellPlan, batch: int | str) -> Values:
    cell = plan.cell
    top = cell.model_dump(mode="json", include={"backend", "num_processes", "num_nodes", "mixed_precision"})
    several = {"accumulate": cell.micro_batches(batch)} if cell.train.global_batch and isinstance(batch, int) else {}
    return {**cell.train_settings, **several, **cell.options, **plan.axes, **top, "batch": batch}
