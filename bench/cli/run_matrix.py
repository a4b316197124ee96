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
        message = f"{file} cannot be read ({why}): the report cannot list missing cells or check claims"
        typer.echo(f"bench: {message}", err=True)
        return RunMatrix()
    return RunMatrix(plans, matrix.claims, matrix.choices, arguments(store.root, matrix.name))


def arguments(root: Path, name: str) -> str:
    """What `bench run` and `bench probe` take to go on in this run's folder: ``reports/mine/matrix.yaml``.

    Paths are relative to the current folder where they are below it, as in a job, which gets absolute ones.
    """
    here, plain = Path.cwd(), Path(os.path.abspath(root))
    root = plain if plain.resolve() == root.resolve() else root.resolve()  # a/link/../b may be elsewhere than a/b
    root = root.relative_to(here) if root.is_relative_to(here) else root
    words = [str(root / FILE)]
    if (REPORTS / name).resolve() != root.resolve():
        words += ["--out", str(root)]
    if (root / "slurm").is_dir():
        words += ["--launcher", "slurm"]
    return shlex.join(words)
