"""What a run's own matrix.yaml says to a report: which attempts were planned, what was claimed, what is a choice."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from bench.cli.app import REPORTS
from bench.errors import InputError, one_line

if TYPE_CHECKING:
    from pydantic import JsonValue

    from bench.matrix import Matrix
    from bench.records.claim import Claim
    from bench.records.plan import CellPlan
    from bench.store.run_folder import Store


FILE = "matrix.yaml"


class RunMatrix(NamedTuple):
    """Empty for imported figures, which have no matrix."""

    plans: "Sequence[CellPlan]" = ()
    """The planned cells that the run was started for; not those that --select or --exclude left out."""
    claims: "Sequence[Claim]" = ()
    choices: "Sequence[str]" = ()
    """Axes of which the report picks the best value; empty for the default."""
    arguments: str | None = None
    """See `arguments`."""
    workload_folder: str | None = None
    """Where the workload is, if it is not in the current folder."""


def read(store: "Store") -> RunMatrix:
    """Read the run's matrix.yaml as it was read on the machine of the run.

    One that is missing or cannot be read gives neither cells nor claims; one line on stderr says so.
    """
    from bench.matrix import expand, load
    from bench.records.machine import Hardware

    run = store.plan()
    hardware = run.machine.hardware if run is not None else None
    if run is None or not isinstance(hardware, Hardware):
        return RunMatrix()
    file = store.root / FILE
    try:
        matrix = load(file, hardware=hardware)
        plans = [plan for plan in expand(matrix, hardware) if plan.cell.slug in run.cells]
    except InputError as error:
        why = one_line(error.problem, 240)
        message = f"{file} cannot be loaded ({why}): its missing cells, claims and workload folder are unknown"
        typer.echo(f"bench: {message}", err=True)
        return RunMatrix()
    return RunMatrix(plans, matrix.claims, matrix.choices, arguments(store, matrix), matrix.workload_folder)


def arguments(store: "Store", matrix: "Matrix") -> str:
    """What `bench run` and `bench probe` take to go on with this run: ``reports/mine/matrix.yaml``.

    Paths are relative to the current folder where they are below it, as in a job, which gets absolute ones.
    """
    root = store.root
    here, plain = Path.cwd(), Path(os.path.abspath(root))
    root = plain if plain.resolve() == root.resolve() else root.resolve()  # a/link/../b may be elsewhere than a/b
    root = root.relative_to(here) if root.is_relative_to(here) else root
    words = [str(root / FILE)]
    for condition in _selected(store, matrix):
        words += ["--select", condition]
    if (REPORTS / matrix.name).resolve() != root.resolve():
        words += ["--out", str(root)]
    if (root / "slurm").is_dir():
        words += ["--launcher", "slurm"]
    return shlex.join(words)


def _selected(store: "Store", matrix: "Matrix") -> list[str]:
    """The conditions of --select that leave the cells for which the run was started. None where all cells are, or where
    no such conditions are."""
    from bench.matrix import expand
    from bench.matrix.yaml_file import canonical
    from bench.records.machine import Hardware

    run = store.plan()
    hardware = run.machine.hardware if run is not None else None
    if run is None or not isinstance(hardware, Hardware):
        return []
    every = expand(matrix, hardware)
    kept = [plan for plan in every if plan.cell.slug in run.cells]
    values = {
        name: [
            list({canonical(one): one for plan in plans for one in [plan.axes.get(name)]}.values())
            for plans in (every, kept)
        ]
        for name in (every[0].axes if every else ())
    }
    conditions = [
        f"{name}={','.join(map(_written, ours))}"
        for name, (all_values, ours) in values.items()
        if len(ours) < len(all_values)
    ]
    try:
        left = expand(matrix, hardware, select=conditions)
    except InputError:
        return []
    return conditions if [plan.cell.id for plan in left] == [plan.cell.id for plan in kept] else []


def _written(value: "JsonValue") -> str:
    """A value as a condition of --select holds it: without quotes where it reads the same."""
    from bench.matrix.yaml_file import canonical, parse

    if isinstance(value, str) and value.isidentifier() and parse(value, lambda _: "", "").data == value:
        return value
    return canonical(value)
