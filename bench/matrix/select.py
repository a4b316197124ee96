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
    return [
        plan.model_copy(
            update={
                "batches": tuple(batch for batch in plan.batches if batch in batches[plan.cell.id]),
                "search": "probe" in batches[plan.cell.id],
            }
        )
        for plan in plans
        if plan.cell.id in batches
    ]


def conditions(every: Sequence[CellPlan], kept: Sequence[CellPlan]) -> list[str]:
    """The conditions of --select that leave just the cells ``kept`` of ``every``. None where all are kept, or where
    no such conditions are."""
    found = []
    for name in every[0].axes if every else ():
        ours = {canonical(plan.axes.get(name)): plan.axes.get(name) for plan in kept}
        if len(ours) < len({canonical(plan.axes.get(name)) for plan in every}):
            found.append(f"{name}={','.join(map(_written, ours.values()))}")
    try:
        left = narrow(every, select=found)
    except InputError:
        return []
    return found if [plan.cell.id for plan in left] == [plan.cell.id for plan in kept] else []


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
    return {**cell.train_settings, **cell.options, **plan.axes, **top, "batch": batch}
