"""Observes the regime that really runs, from the live objects and never from the request."""

import os

from bench.backends import expected_regime, shards_parameters
from bench.observe import effective
from bench.observe.products import Computed
from bench.records.base import Device
from bench.records.cell import Cell, Regime
from bench.runner.setup import Job


class RegimeMismatch(RuntimeError):
    """The regime that ran differs from the regime that the cell requests."""


def observe(job: Job, step: Computed | None = None) -> Regime:
    """The regime of a job that has made at least one step, as this rank sees it. ``step``: what one step computed."""
    optimizers = [] if job.optimizer is None else [job.optimizer]
    observed = effective.observed(job.model, optimizers, step or Computed(), job.unit_names)
    if job.accelerator.num_processes == 1:
        observed["reduction_dtype"] = None
    return Regime(
        world_size=job.accelerator.num_processes,
        ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # set by torch's agent on each node
        distributed_type=job.accelerator.distributed_type.value,
        **observed,
    )


def check(cell: Cell, device: Device, regime: Regime) -> None:
    """Raises RegimeMismatch, which names both sides of every difference."""
    unknown = {
        "matmul_dtype" if regime.matmul_shares is None else None,
        "reshard_after_forward" if regime.reshard_after_forward is None else None,  # no unit could show it
        # What a rank does not hold, it does not step.
        "optimizer_dtype" if (regime.optimizer_dtype, regime.trained_on_rank) == (None, 0) else None,
    }
    differences = [
        f"{name}: requested {wanted}, observed {getattr(regime, name)}"
        for name, wanted in expected_regime(cell, device).items()
        if getattr(regime, name) != wanted and name not in unknown
    ]
    if shards_parameters(cell) != (regime.sharded_parameters > 0):
        wanted = "some" if shards_parameters(cell) else "none"
        differences.append(f"sharded_parameters: requested {wanted}, observed {regime.sharded_parameters}")
    if differences:
        raise RegimeMismatch(f"{cell.backend} did not run as requested: " + "; ".join(differences))
