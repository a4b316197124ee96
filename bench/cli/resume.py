"""The arguments with which `bench run` and `bench probe` go on with a run."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.app import REPORTS

if TYPE_CHECKING:
    from bench.store.run_folder import Store


def arguments(store: "Store") -> str | None:
    """``reports/mine/matrix.yaml --select backend=ddp``; None without a matrix, as of imported figures.

    Paths are relative to the current folder where they are below it, as in a job, which gets absolute ones.
    """
    from bench.matrix.select import conditions
    from bench.store.run_folder import MATRIX

    run = store.plan()
    if run is None or run.plan is None or not (store.root / MATRIX).is_file():
        return None
    root = store.root
    here, plain = Path.cwd(), Path(os.path.abspath(root))
    root = plain if plain.resolve() == root.resolve() else root.resolve()  # a/link/../b may be elsewhere than a/b
    root = root.relative_to(here) if root.is_relative_to(here) else root
    words = [str(root / MATRIX)]
    for condition in conditions(run.plan.cells, run.planned):
        words += ["--select", condition]
    if (REPORTS / run.plan.matrix).resolve() != root.resolve():
        words += ["--out", str(root)]
    if (root / "slurm").is_dir():
        words += ["--launcher", "slurm"]
    return shlex.join(words)
