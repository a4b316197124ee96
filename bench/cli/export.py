"""`bench export`: results into an experiment tracker."""

from typing import Annotated, Literal

import typer

from bench.cli import selection
from bench.cli.app import REPORTS
from bench.cli.printing import print_unreadable
from bench.errors import InputError
from bench.units import counted


def export(
    tracker: Annotated[Literal["wandb", "mlflow", "trackio"], typer.Argument(help="The tracker.")],
    folders: selection.Runs = None,
    project: Annotated[str, typer.Option(metavar="NAME", help="The project, or experiment, to add runs to.")] = "bench",
) -> None:
    """Add results to W&B, MLflow or trackio, without a network.

    Each cell and batch becomes one run of the tracker, with its settings, figures and losses under the names of csv and
    json. The same command again adds them again.
    """
    from bench.cli.collect import collect, stores_of
    from bench.report.render.trackers import TRACKERS
    from bench.report.tables.export import tracked
    from bench.store.newest_run import newest

    folders = folders or [newest(REPORTS)]
    stores = stores_of(folders)
    runs = tracked(collect(stores, claims=[]).summary)
    print_unreadable(stores)
    if not runs:
        raise InputError("has no results yet", where=", ".join(map(str, folders)), fix="`bench run` measures some")
    where = TRACKERS[tracker](runs, project, folders[0].resolve().name)
    typer.echo(f"{counted(len(runs), 'run')} in {where}")
