"""What `bench run` and `bench probe` print around a sweep: the first lines, the report, the last lines."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from bench.cli.printing import console, forget_stdout, print_report, print_unreadable
from bench.cli.report_files import write_reports
from bench.errors import InputError
from bench.units import GIB, counted, size

if TYPE_CHECKING:
    from bench.cli.progress import Progress
    from bench.matrix import Matrix
    from bench.records.base import Device
    from bench.records.outcome import Result
    from bench.records.plan import CellPlan
    from bench.sweep.sweep import Sweep


LONG_BYTES = 2 * GIB
"""Memory limit from which a search on a CPU may take long: it fills the memory several times."""


def load_libraries() -> None:
    """Of rates and reports, before anything starts: compiled modules can be imported once, and if a signal ended the
    import of one after the first result, the report could not be written."""
    for name in ("scipy.special", "scipy.optimize"):
        import_module(name)


def begin(progress: "Progress", sweep: "Sweep", matrix: "Matrix") -> None:
    """The first lines: how much there is to do, and what the user should know first."""
    from bench import machine
    from bench.sweep.stored_before import stored_before

    finished, attempts = sweep.finished(), sweep.planned()
    notes = [
        *matrix.notes,
        *machine.notes(sweep.machine),
        *_limits(sweep.plans, sweep.machine.hardware.device),
        *stored_before(sweep),
        *(_disturbances(sweep) if finished < attempts else []),
    ]
    folder = str(sweep.store.root)
    progress.begin(cells=len(sweep.plans), attempts=attempts, finished=finished, folder=folder, notes=notes)


@contextmanager
def reported(progress: "Progress", sweep: "Sweep") -> Iterator[None]:
    """Write the run's report at the end of the sweep, also when Ctrl-C or a signal stops it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        progress.end()
        resume = (
            "run the same command again to resume"
            if not sweep.rerun
            else "the same command measures the chosen attempts again; attempts that did not start keep earlier results"
        )
        with suppress(OSError):  # the terminal may be gone
            typer.echo(f"interrupted; {resume}: {sweep.store.root}", err=True)
        if isinstance(stop, SystemExit):
            raise
        raise typer.Exit(130) from None
    finally:
        stopped_by = sys.exception()
        try:
            write_reports(sweep.store)
        except (InputError, OSError) as error:  # the results are stored, and their exit code counts
            if not isinstance(stopped_by, InputError | OSError):  # that one is printed, and may be the cause of both
                with suppress(OSError):
                    typer.echo(f"bench: the report cannot be written: {error}", err=True)


def print_end(sweep: "Sweep", results: "list[Result]") -> None:
    from bench.cli.collect import collect
    from bench.records.outcome import KINDS

    store = sweep.store
    # Of a cell that this command did not search, maybe only some results are shown: its verdict is left out.
    searched = {plan.cell.id for plan in sweep.plans if plan.search}
    try:
        whole = collect([store], claims=[])
        report = replace(
            whole, results=results, probes=[probe for probe in whole.probes if probe.cell.id in searched], missing=()
        )
        print_report(report, console())
        print_unreadable([store])
        if (others := len(whole.results) - len(results)) > 0:
            typer.echo(f"{counted(others, 'other attempt')} of this run not shown here: see the report")
        if failed := [result.attempt.cell.slug for result in results if KINDS[result.outcome.kind].fails]:
            number = counted(len(failed), "attempt")
            typer.echo(
                f"{number} failed or hung: see `bench show {failed[0]} {store.root}` and `bench guide troubleshooting`"
            )
        typer.echo(f"results: {store.root}  report: {store.root / 'report.md'}")
    except OSError:  # everything is stored, and the exit code says how it went
        forget_stdout()


def _limits(plans: "Sequence[CellPlan]", device: "Device") -> list[str]:
    """The memory limits that are enforced, or up to where a search goes."""
    each = "rank" if all(plan.cell.script is None for plan in plans) else "process of the script"
    doing = "probing" if any(plan.search for plan in plans) else "measuring"
    shorten = doing == "probing" and device == "cpu"
    limits = dict.fromkeys(plan.cell.memory_limit_bytes for plan in plans)
    enforced = [
        f"{doing} with a limit of {size(limit)} per {each} (launch.memory_limit), enforced"
        + (
            "; a search may take an hour, and minutes with launch.memory_limit=1GiB"
            if shorten and limit >= LONG_BYTES
            else ""
        )
        for limit in limits
        if limit is not None
    ]
    return enforced or (["probing without a limit, up to the free memory of the device"] if doing == "probing" else [])


def _now(text: str) -> str:
    """Of what was seen just before the first attempt."""
    seen = text.removesuffix(".").replace("processes took", "processes take").removesuffix(" just before")
    return f"now: {seen}. Stop them, or expect no sure answer" if "processes" in seen else f"now: {seen}"


def _disturbances(sweep: "Sweep") -> list[str]:
    """What already disturbs measurements on this machine."""
    from bench.report.implausible import disturbances

    return [_now(text) for text in disturbances(sweep.beside.now())]
