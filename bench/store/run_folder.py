"""The run folder: one class knows every file name. No file is ever half written, no measurement overwritten.

`bench guide run-folder` lists the files. An attempt's folder also has `launch.log`, the output of its own launch, and
the files of bench/store/spool.py. While a run uses the folder, `.room` reserves disk space: see bench/store/disk.py.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from bench.errors import InputError
from bench.records.base import Frozen
from bench.records.best import Best
from bench.records.calibration import Calibration
from bench.records.cell import Attempt, Audit, Cell, Walk
from bench.records.forecast import Forecast, KeptPlan
from bench.records.machine import Machine
from bench.records.outcome import Result
from bench.records.plan import CellPlan, RunPlan
from bench.records.rank_outcome import Walked
from bench.records.sources import LastCommand
from bench.records.until import Until
from bench.records.verdict import Probe
from bench.store import disk, newest_run, run_lock, spool, tries

Model = TypeVar("Model", bound=BaseModel)

SLUG = r"^\w[\w.-]*$"
"""A folder's name, which cannot lead out of `attempts/`."""
MATRIX = "matrix.yaml"


class Run(Frozen):
    """`run.json`."""

    machine: Machine
    cells: tuple[Annotated[str, Field(pattern=SLUG)], ...]
    """Slugs of the cells that commands selected, in the order of the matrix."""
    batches: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    """Which of their batches commands selected, as in `CellPlan.batch_axis`; of a cell that is not listed, all."""
    plan: RunPlan | None = None
    """None for imported figures, and for a folder that only audits have used."""

    @property
    def planned(self) -> list[CellPlan]:
        """The cells of the matrix that commands selected, with the batches that they selected."""
        slugs = set(self.cells)
        plans = [plan for plan in (self.plan.cells if self.plan else ()) if plan.cell.slug in slugs]
        return [plan.only(self.batches.get(plan.cell.slug, plan.batch_axis)) for plan in plans]


class Store:
    """One run folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: dict[Path, str] = {}
        """Files that could not be used, and why. Grows as files are read."""

    @contextmanager
    def open(
        self,
        machine: Machine,
        cells: Sequence[Cell],
        matrix_text: str | None,
        *,
        plan: RunPlan | None = None,
        batches: Mapping[str, tuple[int | str, ...]] | None = None,
        shared: bool = False,
    ) -> Iterator[None]:
        """Lock the folder for one run, creating it where needed. Imported figures have no matrix. Without one, the
        stored matrix and plan stay.

        Args:
            batches: of these cells, by slug; see `Run.batches`.
            shared: with others that claim each of their cells.

        Raises:
            InputError: another run uses it, its machine is unlike this one, or it cannot be written, now or later
                when the disk is full.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk.refused(self.root, error) from error
        self.check()
        with run_lock.held(self.root, shared=shared), disk.said_once(self.root):
            self._prepare(machine, cells, matrix_text, plan, batches or {})
            yield

    def check(self) -> None:
        """Leaves nothing behind.

        Raises:
            InputError: the folder cannot be made or written, or holds something else.
        """
        try:
            disk.check_folder(self.root)
            others = [one for one in self.root.glob("*") if one.name[0] != "." and one.name != "slurm"]  # listed first
            if others and not (self.root / "run.json").exists() and not self._holds_results():
                raise InputError(
                    "holds other files and no run", where=str(self.root), fix="choose another folder with --out"
                )
        except OSError as error:
            raise disk.refused(self.root, error) from error

    def is_in_use(self) -> bool:
        """Whether another process measures in this folder."""
        return run_lock.is_held(self.root)

    def _prepare(
        self,
        machine: Machine,
        cells: Sequence[Cell],
        matrix_text: str | None,
        plan: RunPlan | None,
        batches: Mapping[str, tuple[int | str, ...]],
    ) -> None:
        earlier, file = self.plan(), self.root / "run.json"
        if earlier is not None and (differences := earlier.machine.unlike(machine)):
            raise InputError(
                "this run was measured on an unlike machine: " + "; ".join(differences),
                where=str(self.root),
                fix="one run holds results of one machine: choose another folder with --out",
            )
        if earlier and earlier.plan and plan and self._holds_results():
            ours, theirs = ({cell.cell.workload for cell in each.cells} for each in (plan, earlier.plan))
            if ours and theirs and not ours & theirs:
                raise InputError(
                    f"this run is of another workload: {', '.join(sorted(theirs))}",
                    where=str(self.root),
                    fix="choose another folder with --out",
                )
        torn = file in self.unreadable
        before, planned = earlier.cells if earlier else (), [cell.slug for cell in cells]
        slugs = tuple(dict.fromkeys([*planned, *before] if torn else [*before, *planned]))
        if earlier is not None and not torn and matrix_text is None:
            if slugs != before:
                self._add(earlier.model_copy(update={"cells": slugs}))
            return
        both = dict(earlier.batches) if earlier else {}
        whole = set(before) - set(both) if earlier and earlier.plan else ()  # all their batches were selected
        for slug, chosen in batches.items():
            if slug not in whole:
                both[slug] = tuple(dict.fromkeys((*both.get(slug, ()), *chosen)))
        spool.write(file, Run(machine=machine, cells=slugs, batches=both, plan=plan))
        newest_run.become(file)
        if matrix_text is not None:
            spool.write_text(self.root / MATRIX, matrix_text)

    def _add(self, run: Run) -> None:
        """Add cells that are audited, not measured. The file keeps its time: this run does not become the newest."""
        file = self.root / "run.json"
        written = file.stat()
        spool.write(file, run)
        os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))

    def result(self, attempt: Attempt) -> Result | None:
        """The stored result; None when the attempt is not finished or its file cannot be read."""
        return self._read(attempt.slug)

    def results(self) -> list[Result]:
        """All finished attempts, in the order of the matrix.

        Raises:
            InputError: the folder holds no run.
        """
        run = self.plan()
        if run is None:
            raise newest_run.no_run(self.root)
        return [result for slug in dict.fromkeys(run.cells) for result in self._results(slug)]

    def of_cell(self, cell: Cell) -> list[Result]:
        """All finished attempts of one cell, by batch and launch."""
        return self._results(cell.slug)

    def _results(self, slug: str) -> list[Result]:
        folders = (self.root / "attempts" / slug).glob("b*")
        found = [result for folder in folders if (result := self._read(f"{slug}/{folder.name}")) is not None]
        return sorted(found, key=lambda one: (one.attempt.batch_per_rank, one.attempt.short, one.attempt.launch))

    def command(self, attempt: Attempt) -> str | None:
        """The script that runs ``attempt`` by hand; None when nothing was launched."""
        file = self.folder(attempt) / "command.sh"
        return file.read_text(errors="replace") if file.is_file() else None

    def has_scripts(self, results: Iterable[Result]) -> bool:
        """Whether `command.sh` lies beside one of these results; a copy of a run may leave them out."""
        return any((self.folder(result.attempt) / "command.sh").exists() for result in results)

    def log_tails(self, attempt: Attempt, lines: int) -> dict[str, str]:
        """The last ``lines`` of each log that is not blank, without the user's secrets."""
        logs = sorted(self.folder(attempt).glob("*.log"))
        texts = {log.name: spool.end_of(log, 1000 * lines) for log in logs}
        tails = {name: "\n".join(text.splitlines()[-lines:]) for name, text in texts.items()}
        return {name: tail for name, tail in tails.items() if tail.strip()}

    def walked(self, cell: Cell) -> list[Walked]:
        """The footprints of a walk, by rank; empty without a walk, or when a rank left none."""
        folder = self.folder(Walk(cell=cell, batches_per_rank=()))
        ranks = [self.load(folder / f"walk{rank}.json", Walked) for rank in range(cell.num_processes)]
        return [rank for rank in ranks if rank is not None] if all(ranks) else []

    def probe(self, cell: Cell) -> Probe | None:
        return self._probe(cell.slug)

    def probes(self) -> list[Probe]:
        """The verdicts of all searches, in the matrix's order."""
        run = self.plan()
        return [found for slug in dict.fromkeys(run.cells if run else ()) if (found := self._probe(slug)) is not None]

    def finish_probe(self, found: Probe) -> None:
        file = self._probe_file(found.cell.slug)
        file.parent.mkdir(parents=True, exist_ok=True)
        spool.write(file, found)

    def until(self) -> Until | None:
        """How the last `bench run --until` ended; None without one."""
        return self.load(self.root / "until.json", Until)

    def finish_until(self, until: Until) -> None:
        spool.write(self.root / "until.json", until)

    def best(self) -> Best | None:
        """How the last `bench run --best` ended; None without one, or if a run of the whole matrix came after it."""
        return self.load(self.root / "best.json", Best)

    def finish_best(self, best: Best) -> None:
        spool.write(self.root / "best.json", best)

    def forget_best(self) -> None:
        (self.root / "best.json").unlink(missing_ok=True)

    def _probe(self, slug: str) -> Probe | None:
        file = self._probe_file(slug)
        found = self.load(file, Probe)
        return found if found is None or self._belongs(file, found.cell.slug, slug) else None

    def _probe_file(self, slug: str) -> Path:
        return self.root / "attempts" / slug / "probe.json"

    def begin(self, attempt: Attempt | Walk | Audit) -> Path:
        """A new empty folder for ``attempt``. An earlier one moves below `superseded/`."""
        disk.keep(self.root)
        folder = self.folder(attempt)
        self.set_aside(attempt)
        folder.mkdir(parents=True)
        return folder

    def set_aside(self, attempt: Attempt | Walk | Audit) -> None:
        """Make the attempt unfinished again; its files stay below `superseded/`."""
        folder = self.folder(attempt)
        if folder.exists():
            shutil.rmtree(spool.checkpoint_folder(folder), ignore_errors=True)  # bench was killed while it was saved
            aside = self.root / "superseded" / folder.relative_to(self.root / "attempts")
            aside.parent.mkdir(parents=True, exist_ok=True)
            number = max((int(old.suffix[1:]) for old in tries.aside(self.root, folder)), default=-1) + 1
            folder.rename(aside.with_name(f"{aside.name}.{number}"))

    def lost(self, attempt: Attempt | Walk) -> list[str]:
        """See `tries.lost`."""
        return tries.lost(self.root, self.folder(attempt))

    def finish(self, result: Result) -> None:
        """Store an attempt's outcome. It is on disk when this returns."""
        folder = self.folder(result.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            spool.write(folder / "result.json", result)
        except OSError:
            disk.give_up(self.root)
            spool.write(folder / "result.json", result)

    def calibration(self) -> Calibration | None:
        """What was known of the variation between launches of this machine."""
        return self.load(self.root / "calibration.json", Calibration)

    def keep_calibration(self, learnt: Calibration) -> None:
        spool.write(self.root / "calibration.json", learnt)

    def last_command(self) -> LastCommand | None:
        """The last command that measured here; None where that is not known."""
        return self.load(self.root / "last_command.json", LastCommand)

    def keep_command(self, command: LastCommand) -> None:
        spool.write(self.root / "last_command.json", command)

    def forecasts(self) -> KeptPlan | None:
        """The plan that the folder keeps, to set it beside what was measured, on any machine."""
        return self.load(self._plan_file, KeptPlan)

    def keep_forecasts(self, forecasts: Iterable[Forecast]) -> None:
        """Keep these forecasts, if the folder can be written, and earlier ones of other cells."""
        earlier = self.forecasts()
        self.unreadable.pop(self._plan_file, None)  # one of another version is made again
        known = {one.cell.id: one for one in earlier.forecasts} if earlier else {}
        found = tuple((known | {one.cell.id: one for one in forecasts}).values())
        if found and (earlier is None or found != earlier.forecasts):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            with suppress(OSError):
                spool.write(self._plan_file, KeptPlan(planned_at=now, forecasts=found))

    def forget_forecasts(self) -> None:
        """Of sources that have changed since: it is the plan of another model."""
        with suppress(OSError):
            self._plan_file.unlink(missing_ok=True)

    @property
    def _plan_file(self) -> Path:
        return self.root / "plan.json"

    def keep(self, name: str, text: str) -> None:
        """Keep a copy of a file that figures were imported from."""
        folder = self.root / "imported"
        folder.mkdir(exist_ok=True)
        spool.write_text(folder / name, text)

    def servers(self) -> Path:
        """A new folder for the spools of this run's rank servers."""
        number = 0
        while True:
            with suppress(FileExistsError):  # an earlier one, or another job's
                (folder := self.root / "servers" / str(number)).mkdir(parents=True)
                return folder.resolve()
            number += 1

    def folder(self, attempt: Attempt | Walk | Audit) -> Path:
        """Where the files of ``attempt`` lie."""
        return self.root / "attempts" / attempt.slug

    def plan(self) -> Run | None:
        """What the folder was opened for: the machine and the cells; None when it holds no run.

        A run.json that is missing or cannot be read is rebuilt from the results.
        """
        file = self.root / "run.json"
        run = self.load(file, Run)
        if run is None and self._holds_results() and not file.exists():
            self.unreadable[file] = "it is missing"
        if run is not None or file not in self.unreadable:
            return run
        slugs = sorted(one.name for one in (self.root / "attempts").glob("*") if re.fullmatch(SLUG, one.name))
        results = [result for slug in slugs for result in self._results(slug)]
        if not results:
            raise InputError(
                "is not a run of this version of bench", where=str(file), fix="choose another folder with --out"
            )
        return Run(machine=results[0].machine, cells=tuple(slugs))

    def _holds_results(self) -> bool:
        return any(self.root.glob("attempts/*/b*/result.json"))

    def _read(self, slug: str) -> Result | None:
        """The attempt's result. The earlier one while it is measured again, or if that was interrupted."""
        folder = self.root / "attempts" / slug
        for kept in (folder, *reversed(tries.aside(self.root, folder) if folder.is_dir() else [])):
            file = kept / "result.json"
            found = self.load(file, Result)
            if found is not None and self._belongs(file, found.attempt.slug, slug):
                return found
            if file in self.unreadable:
                return None
        return None

    def _belongs(self, file: Path, slug: str, expected: str) -> bool:
        """Whether a file lies in its own folder: a cell's name is a hash, so an edited cell has another name."""
        if slug != expected:
            self.unreadable[file] = f"it is of another cell or batch, {slug}"
        return slug == expected

    def load(self, file: Path, kind: type[Model]) -> Model | None:
        """The stored record. None, and noted as unreadable, when the file is torn, edited or of another version."""
        self.unreadable.pop(file, None)
        try:
            return spool.read(file, kind)
        except NotADirectoryError:
            return None
        except ValidationError as error:
            self.unreadable[file] = spool.why(error)
        except OSError as error:
            self.unreadable[file] = error.strerror or str(error)
        return None
