"""`bench plan`: what will fit, and how long a step takes at least or by an estimate, before anything runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli import selection
from bench.cli.forecasts import forecasts_of, forecasts_of_run
from bench.cli.printing import print_document, print_unreadable
from bench.errors import InputError, near_miss

if TYPE_CHECKING:
    from bench.records.calibration import Paces
    from bench.records.cell import Cell
    from bench.records.devices import DeviceSpec
    from bench.records.forecast import Forecast
    from bench.records.machine import Hardware
    from bench.report.plan import PlannedCell
    from bench.report.tables.export import Record
    from bench.report.tables.table import Table

Format = Literal["md", "json", "csv"] | None


def plan(
    matrix: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX", help="The matrix file, or one that comes with bench: quickstart."),
    ] = None,
    overrides: selection.Overrides = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Plan for this device: A100-80GB.  [default: this machine]"),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=1024, help="Devices, one per rank.  [default: 8, or those of this machine]"
        ),
    ] = None,
    devices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML file with devices of your own for --device.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one device, instead of its own: 40GiB.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="PRICE", help="Per device and hour, in any currency: 2.5/h.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare the plan with what this run measured, and keep it in the run's folder for reports.",
        ),
    ] = None,
    format_: Annotated[
        Format,
        typer.Option("--format", help="Print data or markdown instead of tables for the terminal."),
    ] = None,
) -> None:
    """Predict memory, the largest batch and the step time.

    Needs none of the devices, and launches nothing. Each cell's model runs once without values, to see what its step
    keeps. Exits with 1 if a cell does not fit or cannot be planned, or if a run with --check refutes its plan. Cells
    that `bench run` skips do not count.
    """
    from bench.report.plan import rows
    from bench.report.tables import plan as plan_tables

    if check is not None:
        added = {
            "MATRIX": matrix,
            "KEY=VALUE": overrides,
            "--axis": axis,
            "--select": select,
            "--exclude": exclude,
            "--device": device,
            "--ranks": ranks,
            "--devices": devices,
            "--memory": memory,
            "--price": price,
        }
        _check(check, [name for name, value in added.items() if value], format_)
        return
    if matrix is None:
        raise InputError("nothing to plan", fix="name a matrix file, or a run with --check")
    cost = None if price is None else _price(price)
    spec, hardware = device_of(device, ranks, devices, memory)
    fitted = paces_of(spec, hardware)
    if device is not None and ranks is None:
        asked = _asked(matrix, overrides or [], axis or [], hardware)
        hardware = hardware.model_copy(update={"devices": max(hardware.devices, asked)})
    if ranks is not None:
        if any(one.startswith("launch.num_processes=") for one in overrides or []):
            raise InputError("launch.num_processes is given, too", where="--ranks", fix="leave out one of them")
        overrides = [f"launch.num_processes={ranks}", *(overrides or [])]
    selected = selection.read(
        matrix, overrides or [], axis=axis, select=select, exclude=exclude, hardware=hardware, launcher="plan"
    )
    if selected.matrix.command is not None:
        raise InputError(
            "a plan needs a workload whose model bench can build, and a script builds its own", field="command"
        )
    shared_bytes = hardware.memory_bytes if hardware.device == "cpu" and memory is None else None
    for note in selected.matrix.notes:
        typer.echo(note, err=format_ in ("json", "csv"))
    if shared_bytes is not None:
        most = max((one.cell.ranks_per_node for one in selected.plans), default=1)
        spec = spec.model_copy(update={"memory_bytes": shared_bytes // most})
    cells = _planned(selected, spec, shared_bytes)
    listed = rows(cells, spec, cost, fitted.paces if fitted else {})
    number = max((cell.plan.cell.num_processes for cell in cells), default=1)
    said, tables = plan_tables.sentences(cells, spec, number), plan_tables.tables(listed, spec, fitted)
    _print(format_, f"Plan of {selected.matrix.name}", said, tables, plan_tables.records(listed, cells))
    if any(row.fits == "no" for row in listed) or any(cell.impossible or cell.unknown for cell in cells):
        raise typer.Exit(1)


def _print(
    format_: Format, title: str, sentences: Sequence[str], tables: "Sequence[Table]", records: "Sequence[Record]"
) -> None:
    from bench.report.render import frame

    if format_ in ("json", "csv"):
        typer.echo(frame.text(records, format_), nl=False)
    else:
        print_document(title, sentences, tables, markdown=format_ == "md")


def _asked(matrix: Path, overrides: Sequence[str], axis: Sequence[str], hardware: "Hardware") -> int:
    """The ranks of a node that the matrix asks for; 1 if it takes what there is."""
    from bench.matrix import load
    from bench.matrix.bundled import named

    loaded = load(named(matrix), overrides=overrides, axes=axis, hardware=hardware)
    asked = loaded.launch.num_processes
    return 1 if asked == "auto" else -(-asked // loaded.launch.nodes)


def _check(folder: Path, added: Sequence[str], format_: Format) -> None:
    """Print the plan of a run's cells beside what was measured; exits with 1 if a peak refutes it.

    Args:
        added: options that belong to the plan of a matrix.
    """
    if added:
        raise InputError(
            f"a run has its own cells, ranks and device, and {', '.join(added)} would change them",
            where="--check",
            fix=f"leave out {', '.join(added)}, or plan the matrix without --check",
        )
    from bench.report.plan import check
    from bench.report.summary import summarize
    from bench.report.tables import plan as plan_tables
    from bench.store.run_folder import Store

    store = Store(folder)
    summary = summarize(store.results())
    forecasts, why = forecasts_of_run(store)
    store.keep_forecasts(forecasts.values())
    learnt = store.calibration()
    checked = check(summary, forecasts, learnt.rates if learnt else None)
    if not checked:
        raise InputError(
            "no measured peak has a plan", where=str(folder), fix="; ".join(dict.fromkeys(why.values())) or None
        )
    print_unreadable([store])
    for cell in summary.cells:
        if (reason := why.get(cell.cell.id)) is not None:
            typer.echo(f"bench: {cell.cell.backend}, {cell.cell.id}: no plan: {reason}", err=True)
    said, tables = [plan_tables.verdict(checked)], [plan_tables.check_table(checked)]
    _print(format_, f"Plan of {folder.resolve().name}", said, tables, plan_tables.check_records(checked))
    if not all(one.confirmed for one in checked):
        raise typer.Exit(1)


def _price(text: str) -> float:
    """``2.5/h``.

    Raises:
        InputError: not such a price.
    """
    number, slash, unit = text.strip().partition("/")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not (0 < value < 1e6) or (slash and unit.strip() not in ("h", "hour")):
        raise InputError(f"{text!r} is not a price", where="--price", allowed="2.5/h, of one device for an hour")
    return value


def device_of(
    name: str | None, ranks: int | None, file: Path | None, memory: str | None
) -> "tuple[DeviceSpec, Hardware]":
    """The device to plan for, and the hardware that the matrix is expanded for."""
    from bench import machine
    from bench.matrix import devices_file
    from bench.records.devices import GPUS, DeviceSpec, spec_of
    from bench.records.machine import Hardware
    from bench.store import calibrations

    own = devices_file.read(file) if file is not None else {}
    here = machine.detect()
    if name is not None:
        spec = own.get(name) or spec_of(name)
        if spec is None:
            raise InputError(
                f"{name!r} is not a known device",
                where="--device",
                allowed=[*own, *GPUS],
                fix=near_miss(name, [*own, *GPUS]) or "describe it in a file for --devices",
            )
        number = ranks or 8
    else:
        this = machine.record(here)
        names = this.accelerators
        known = spec_of(names[0]) if names else None
        number = ranks or here.devices or 2
        each = here.memory_bytes if here.device == "cuda" else here.memory_bytes // number
        spec = DeviceSpec(name=names[0] if names else "CPU", memory_bytes=each, source="this machine")
        if known is not None:
            spec = known.model_copy(update={"memory_bytes": each})
        elif (learned := calibrations.newest(this, calibrations.folder())) and learned.rates:
            spec = spec.model_copy(update=learned.rates.of_a_device)
    if memory is not None:
        try:
            spec = spec.model_copy(update={"memory_bytes": devices_file.memory_bytes(memory)})
        except ValueError as error:
            raise InputError(str(error), where="--memory") from error
    on_cpu = name is None and here.device == "cpu"
    host = spec.memory_bytes * number if on_cpu else spec.memory_bytes
    return spec, Hardware(
        device="cpu" if on_cpu else "cuda",
        devices=0 if on_cpu else number,
        cores=here.cores,
        memory_bytes=host,
        bf16=here.bf16 if name is None else name in own or spec.bf16_flops_per_s is not None,
    )


def paces_of(spec: "DeviceSpec", hardware: "Hardware") -> "Paces | None":
    """The latest paces of the planned device: of this machine's CPU, or of a GPU of this name."""
    from bench import machine
    from bench.records.devices import spec_of
    from bench.store import calibrations

    known = calibrations.paces(calibrations.folder())
    if hardware.device == "cpu":
        this = machine.record(machine.detect())
        return next((one for one in known if not one.machine.unlike(this)), None)
    for one in known:
        name = next(iter(one.machine.accelerators), "")
        listed = spec_of(name)
        if spec.name in (name, listed.name if listed else name):
            return one
    return None


def _planned(selected: selection.Selection, spec: "DeviceSpec", shared_bytes: int | None) -> "list[PlannedCell]":
    """Every cell with its forecast, from stored programs or from such as are traced now.

    Args:
        shared_bytes: of a host whose CPU ranks share it; None if each rank has the memory of ``spec``.
    """
    from bench.backends import forbids
    from bench.report.plan import PlannedCell

    device = selected.hardware.device
    reasons = {one.cell.id: forbids(one.cell, device) for one in selected.plans}
    forecasts, why = forecasts_of(
        [one.cell for one in selected.plans if reasons[one.cell.id] is None],
        device,
        selected.matrix.workload.name,
        selected.matrix.workload_folder,
        spec.name if device == "cuda" else None,
    )
    return [
        PlannedCell(
            plan=one,
            forecast=forecasts.get(one.cell.id),
            reason=reasons[one.cell.id] or why.get(one.cell.id),
            skipped=reasons[one.cell.id] is not None,
            capacity_bytes=capacity_bytes(one.cell, forecasts.get(one.cell.id), spec, shared_bytes),
            goal=selected.matrix.probe.of(one.cell) if one.search else None,
        )
        for one in selected.plans
    ]


def capacity_bytes(cell: "Cell", forecast: "Forecast | None", spec: "DeviceSpec", shared_bytes: int | None) -> int:
    """What one rank may use."""
    own = spec.memory_bytes if shared_bytes is None else shared_bytes // cell.ranks_per_node
    if cell.memory_limit_bytes is None:
        return own
    return min(own, cell.memory_limit_bytes + (forecast.beside_limit_bytes if forecast else 0))
