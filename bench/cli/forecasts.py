"""The forecasts of cells, with what is traced shown on stderr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from bench.errors import InputError
from bench.records.sources import differing, named
from bench.units import counted

if TYPE_CHECKING:
    from bench.records.base import Device
    from bench.records.cell import Cell
    from bench.records.forecast import Forecast
    from bench.records.outcome import Result
    from bench.store.run_folder import Store
    from bench.sweep.forecasts import Forecasts

PATIENCE_S = 600.0
"""For the tracing of one model; the largest of the bundled ones takes ten seconds."""


def forecasts_of(
    cells: "Sequence[Cell]", device: "Device", workload: str, folder: str | None, gpu: str | None
) -> "Forecasts":
    """The forecasts of cells. Shows on stderr what is traced.

    Args:
        gpu: its name; None on a CPU.
    """
    from bench.records.program import Program
    from bench.sweep import forecasts

    done = 0

    def finished(found: object, number: int) -> None:
        nonlocal done
        done += 1
        took = f" in {found.seconds:.0f} s" if isinstance(found, Program) else ""
        typer.echo(f"bench: traced {done} of at most {counted(number, 'model')} for the plan{took}", err=True)

    return forecasts.forecasts_of(cells, device, workload, folder, finished, gpu=gpu, patience_s=PATIENCE_S)


def forecasts_of_run(store: "Store") -> "Forecasts":
    """The forecasts of the cells of a run, unless their workload has changed since. Shows on stderr what is traced."""
    from bench.sweep.forecasts import Forecasts

    run = store.plan()
    folder = run.plan.workload_folder if run and run.plan else None
    by_cell: dict[str, list[Result]] = {}
    for result in store.results():
        by_cell.setdefault(result.attempt.cell.id, []).append(result)
    together: dict[tuple[Device, str | None, str], list[Cell]] = {}  # what one process traces
    forecasts: dict[str, Forecast] = {}
    why: dict[str, str] = {}
    for results in by_cell.values():
        cell, machine = results[0].attempt.cell, results[0].machine
        try:
            changed = [] if cell.script else _changed(results, cell.workload, folder)
        except InputError as error:
            why[cell.id] = str(error)
            continue
        if changed:
            why[cell.id] = f"{named(changed)}: changed since the run: `bench run` measures it again"
        else:
            gpu = next(iter(machine.accelerators), None)
            together.setdefault((machine.hardware.device, gpu, cell.workload), []).append(cell)
    for (device, gpu, workload), cells in together.items():
        try:
            found = forecasts_of(cells, device, workload, folder, gpu)
        except InputError as error:
            why.update((cell.id, str(error)) for cell in cells)
            continue
        forecasts.update(found.found)
        why.update(found.why_not)
    return Forecasts(forecasts, why)


def _changed(results: "Sequence[Result]", workload: str, folder: str | None) -> list[str]:
    """The files of a workload of the user's that differ from those that made any of ``results``.

    Raises:
        InputError: it cannot be loaded.
    """
    from bench import workloads
    from bench.sweep import sources
    from bench.workloads.huggingface import PREFIX

    known = [result.sources for result in results if result.sources]
    if not known or workload.startswith(PREFIX) or workloads.modules_of(workload)[0].startswith("bench."):
        return []  # bundled ones change with bench, on which a plan depends as a whole
    workloads.search(folder)
    workloads.load(workload)
    now = sources.of(workload)
    files = dict.fromkeys(file for then in known for file in differing(then, now))
    return [file for file in files if not file.startswith("bench/")]
