"""What `--dry-run` shows: each cell with what it would be launched with. Pure."""

from collections.abc import Mapping, Sequence

from bench import backends, workload
from bench.cell import Attempt
from bench.launch import prepare
from bench.machine import Hardware
from bench.matrix import CellPlan, Matrix
from bench.sweep import label


def lines(matrix: Matrix, plans: Sequence[CellPlan], hardware: Hardware, user: Mapping[str, str]) -> list[str]:
    """The text, line by line; ``user`` is the environment that bench was started with."""
    units = workload.load(matrix.workload.name).units
    return [*matrix.notes, *(line for plan in plans for line in (*_cell(plan, units, hardware, user), ""))]


def _cell(plan: CellPlan, units: tuple[str, ...], hardware: Hardware, user: Mapping[str, str]) -> list[str]:
    cell = plan.cell
    title = f"{cell.slug}  {label(plan)}  batch per rank {', '.join(map(str, plan.batches))}"
    if reason := backends.forbids(cell, hardware.device):
        return [title, f"  skipped: {reason}"]
    first = next((batch for batch in plan.batches if batch != "probe"), 1)
    attempt = Attempt(cell=cell, batch_per_rank=first)
    environment = backends.environment(cell.num_processes, hardware, user)
    files = prepare.files(attempt, units, hardware.device, environment, f"attempts/{attempt.slug}")
    shown = [
        title,
        "  environment: " + " ".join(f"{name}={value}" for name, value in environment.items()),
        f"  set beside the config: {', '.join(backends.beside_config(cell)) or 'nothing'}",
        f"  command: {' '.join(prepare.COMMAND)} attempt attempts/{attempt.slug}",
    ]
    for name in ("accelerate.yaml", "deepspeed.json"):
        if name in files:
            shown += [f"  {name}:", *(f"    {line}" for line in files[name].splitlines())]
    return shown
