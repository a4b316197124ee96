"""The output of `--dry-run`: each cell with its config, environment and command. Pure."""

from collections.abc import Mapping, Sequence

from bench import backends, workloads
from bench.launch import attempt_files
from bench.launch.environment import added_environment
from bench.matrix import Matrix
from bench.records.cell import Attempt
from bench.records.machine import Hardware
from bench.records.plan import CellPlan
from bench.records.verdict import Goal
from bench.units import percent, size


def lines(matrix: Matrix, plans: Sequence[CellPlan], hardware: Hardware, user: Mapping[str, str]) -> list[str]:
    """The text, line by line.

    Args:
        user: the environment that bench was started with.
    """
    units = workloads.load(matrix.workload.name).units
    cells = (line for plan in plans for line in (*_cell(plan, matrix.probe, units, hardware, user), ""))
    return [*matrix.notes, *cells]


def _cell(
    plan: CellPlan, goal: Goal, units: tuple[str, ...] | None, hardware: Hardware, user: Mapping[str, str]
) -> list[str]:
    cell = plan.cell
    title = f"{cell.slug}  {plan.label}  batch per rank {', '.join(map(str, plan.batches))}"
    if plan.launches > 1:
        title += f"  {plan.launches} launches each"
    if reason := backends.forbids(cell, hardware.device):
        return [title, f"  skipped: {reason}"]
    listed = [batch for batch in plan.batches if batch != "probe"]
    attempt = Attempt(cell=cell, batch_per_rank=listed[0] if listed else goal.granularity)
    one = len(plan.batches) == len(listed) == 1
    folder = f"attempts/{attempt.slug if one else f'{cell.slug}/b<batch>'}"
    environment = added_environment(cell.num_processes, hardware, user)
    files = attempt_files.files(attempt, units, hardware.device, environment, folder)
    wraps = backends.FAMILIES[backends.backend_of(cell).family].wraps_units
    found = ["units as found in the model"] if wraps and units is None else []
    limit, command = cell.memory_limit_bytes, " ".join(attempt_files.launch_command(["attempt", folder]))
    shown = [
        title,
        *([f"  search: {_settings(goal)}"] if "probe" in plan.batches else []),
        f"  memory limit: {'none; all that the device has' if limit is None else f'{size(limit)} a rank, enforced'}",
        "  environment: " + " ".join(f"{name}={value}" for name, value in environment.items()),
        f"  set outside the config: {', '.join([*backends.beside_config(cell), *found]) or 'nothing'}",
        f"  {'command' if one else 'command of each batch'}: {command}",
    ]
    for name in ("accelerate.yaml", "deepspeed.json"):
        if name in files:
            shown += [f"  {name}:", *(f"    {line}" for line in files[name].splitlines())]
    return shown


def _settings(goal: Goal) -> str:
    shares = f"tolerance {percent(goal.tolerance)}, headroom {percent(goal.headroom)}"
    return f"max_batch {goal.max_batch}, granularity {goal.granularity}, {shares}"
