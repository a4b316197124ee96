"""The output of `--dry-run`: each cell with its config, environment and command. Pure."""

import shlex
from collections.abc import Mapping, Sequence

from bench import backends
from bench.launch import attempt_files
from bench.launch.environment import added_environment
from bench.launch.script_launch import script_command, script_environment
from bench.matrix import Matrix
from bench.matrix.script import workload_of
from bench.records.cell import Attempt
from bench.records.machine import Hardware
from bench.records.plan import CellPlan
from bench.records.verdict import Goal, OfDivisors
from bench.report.naming import micro_batches_in_words
from bench.units import counted, percent, size

MOST_DETAILED = 8
"""Cells with all details: the backends of one setting."""
MOST_COMMANDS = 4
"""Of the batches of one script."""
AS_FOR_GPUS = " (as for GPUs, since accelerate's type for CPUs starts one process; bench keeps ranks on the CPU itself)"
"""Of the config of several ranks on a CPU."""


def lines(matrix: Matrix, plans: Sequence[CellPlan], hardware: Hardware, user: Mapping[str, str]) -> list[str]:
    """The text, line by line. Of many cells, one line each; ``user`` is the environment of bench itself."""
    units = workload_of(matrix).units
    if len(plans) > MOST_DETAILED:
        listed = [": ".join([_title(plan), *_skipped(plan, hardware)]) for plan in plans]
        hint = f"For the config, environment and command of each cell, --select {MOST_DETAILED} of them or fewer."
        return [*matrix.notes, *listed, "", hint]
    cells = (line for plan in plans for line in (*_cell(plan, matrix.probe, units, hardware, user), ""))
    return [*matrix.notes, *cells]


def _cell(
    plan: CellPlan, goal: Goal, units: tuple[str, ...] | None, hardware: Hardware, user: Mapping[str, str]
) -> list[str]:
    cell, title = plan.cell, _title(plan)
    if skipped := _skipped(plan, hardware):
        return [title, *(f"  {text}" for text in skipped)]
    attempt = Attempt(cell=cell, batch_per_rank=plan.batches[0] if plan.batches else goal.granularity)
    one = len(plan.batches) == 1 and not plan.search
    folder = f"attempts/{attempt.slug if one else f'{cell.slug}/b<batch>'}"
    if cell.script is None:
        environment, per = added_environment(cell.ranks_per_node, hardware, user, nodes=cell.num_nodes), "rank"
        finds = units is None and backends.FAMILIES[backends.backend_of(cell).family].wraps_units
        beside = [
            *backends.beside_config(cell, hardware.device),
            *["units as found in the model"] * finds,
            *micro_batches_in_words(plan),
        ]
        outside = [f"  set outside the config: {', '.join(beside) or 'nothing'}"]
    else:
        environment, per, outside = script_environment(cell, hardware), "process", []
    files = attempt_files.files(attempt, units, hardware.device, environment, folder)
    limit = cell.memory_limit_bytes
    shown = [
        title,
        *([f"  search: {_settings(goal.of(cell))}"] if plan.search else []),
        f"  memory limit: {'none; all that the device has' if limit is None else f'{size(limit)} a {per}, enforced'}",
        "  environment: " + " ".join(f"{name}={value}" for name, value in environment.items()),
        *outside,
        *_commands(attempt, plan, folder, one=one),
    ]
    for name in ("accelerate.yaml", "deepspeed.json"):
        if name in files:
            several = name == "accelerate.yaml" and backends.backend_of(cell).family != "single"
            why = AS_FOR_GPUS if several and hardware.device == "cpu" else ""
            shown += [f"  {name}{why}:", *(f"    {line}" for line in files[name].splitlines())]
    return shown


def _commands(attempt: Attempt, plan: CellPlan, folder: str, *, one: bool) -> list[str]:
    """What starts each attempt. The command of a script has the batch in it, and there is one for each."""
    if plan.cell.script is None:
        command = " ".join(attempt_files.launch_command(["attempt", folder]))
        return [f"  {'command' if one else 'command of each batch'}: {command}"]
    attempts = [Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches[:MOST_COMMANDS]] or [attempt]
    lines = [
        f"  command{'' if one else f' of batch {each.batch_per_rank}'}:"
        f" {shlex.join(script_command(each, f'attempts/{each.slug}'))}"
        for each in attempts
    ]
    more = len(plan.batches) - len(attempts)
    return [*lines, f"  and {counted(more, 'more command')}"] if more > 0 else lines


def _title(plan: CellPlan) -> str:
    launches = f"  {plan.launches} launches each" if plan.launches > 1 else ""
    return f"{plan.cell.slug}  {plan.label}  batch per rank {', '.join(map(str, plan.batch_axis))}{launches}"


def _skipped(plan: CellPlan, hardware: Hardware) -> list[str]:
    reason = backends.forbids(plan.cell, hardware.device)
    return [f"skipped: {reason}"] if reason else []


def _settings(goal: Goal) -> str:
    shares = f"tolerance {percent(goal.tolerance)}, headroom {percent(goal.headroom)}"
    divisors = f", {goal.candidates}" if isinstance(goal, OfDivisors) else ""
    return f"max_batch {goal.max_batch}, granularity {goal.granularity}, {shares}{divisors}"
