"""Results as runs of W&B, MLflow or trackio, which keep them where they keep everything, and on this machine unless
their own environment variables name a server."""

import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

from bench.report.render.image import needed
from bench.report.tables.export import Tracked


def wandb(runs: Sequence[Tracked], project: str, group: str) -> str:
    """Into the folder ``wandb``, or below WANDB_DIR; online with WANDB_MODE=online."""
    library = needed("wandb", extra="wandb")
    settings = library.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    folder, mode = "", os.environ.get("WANDB_MODE", "offline")
    for tracked in runs:
        run = library.init(
            project=project,
            group=group,
            name=tracked.name,
            config=dict(tracked.config),
            mode=mode,
            settings=settings,
        )
        for step in tracked.steps:
            run.log(dict(step))
        run.summary.update(dict(tracked.metrics))
        run.finish()
        folder = os.path.dirname(os.path.dirname(run.dir))
    return folder if mode == "online" else f"{folder}; `wandb sync {folder}/offline-run-*` uploads them"


def mlflow(runs: Sequence[Tracked], project: str, group: str) -> str:
    """Into MLflow's database in the current folder, or where MLFLOW_TRACKING_URI says."""
    library = needed("mlflow", extra="mlflow")
    needed("sqlalchemy", extra="mlflow")
    entities, client = library.entities, library.MlflowClient()
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    now_ms = int(time.time() * 1000)
    for tracked in runs:
        run_id = client.create_run(experiment_id, run_name=tracked.name, tags={"group": group}).info.run_id
        logged = [(0, tracked.metrics), *enumerate(tracked.steps)]
        params = [entities.Param(name, str(value)) for name, value in tracked.config.items()]
        metrics = [
            entities.Metric(name, value, now_ms, step) for step, values in logged for name, value in values.items()
        ]
        client.log_batch(run_id, metrics, params)
        client.set_terminated(run_id)
    return f"{library.get_tracking_uri()}; `mlflow ui` shows them"


def trackio(runs: Sequence[Tracked], project: str, group: str) -> str:
    """Into trackio's cache, or below TRACKIO_DIR. trackio has no summary: the figures follow the last step."""
    library = needed("trackio", extra="trackio")
    for tracked in runs:
        with redirect_stdout(io.StringIO()):  # it prints four lines a run
            run = library.init(
                project=project,
                group=group,
                name=tracked.name,
                config=dict(tracked.config),
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
            for step in [*tracked.steps, tracked.metrics]:
                run.log(dict(step))
            run.finish()
    return f"project {project} of trackio; `trackio show --project {project}` shows them"


TRACKERS: dict[str, Callable[[Sequence[Tracked], str, str], str]] = {
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}
"""Each takes the runs, their project and a group within it, and says where they are and how to look at them."""
