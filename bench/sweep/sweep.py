"""A sweep: cells -> attempts -> outcomes -> store. `Sweep.run` is the whole data flow."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from bench import backends
from bench.launch import attempt_files
from bench.launch.environment import added_environment
from bench.launch.executor import Executor, LaunchResult
from bench.launch.watch import Limits
from bench.machine import oom_kill
from bench.machine.conditions import Sampler
from bench.records.cell import Attempt, Audit, Cell, Walk
from bench.records.conditions import Conditions
from bench.records.machine import Hardware, Machine
from bench.records.outcome import KINDS, Failed, Outcome, Result, Skipped
from bench.records.phases import Stage
from bench.records.plan import CellPlan
from bench.records.sources import Sources
from bench.records.verdict import Goal, Verdict
from bench.store import disk, spool
from bench.store.beats import Beat
from bench.store.run_folder import Store
from bench.sweep import mistakes, turns
from bench.sweep.account import account_in
from bench.sweep.outcomes import given_up, outcome_of_attempt, result_of
from bench.sweep.priors import Priors
from bench.sweep.progress import Progress
from bench.sweep.reuse import Rerun, Reuse, deserves_another_try
from bench.sweep.share import Share


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to measure, where to store it, and the executor that runs the ranks."""

    plans: Sequence[CellPlan]
    goal: Goal
    """Of the search, for cells whose batch is `probe`."""
    search: Callable[["Sweep", CellPlan], None]
    """Searches the batch of such a cell."""
    units: tuple[str, ...] | None
    """Class names of the workload's modules that are sharded as one; None: each attempt finds them in its model."""
    workload_folder: str | None = None
    """Where ranks look for the workload's module first."""
    workload_place: str | None = None
    """Where the matrix names the workload, for messages."""
    machine: Machine
    limits: Limits
    rerun: Rerun | None
    store: Store
    executor: Executor
    progress: Progress
    beside: Sampler
    """Records what else the machine does."""
    sources: Sources | None = None
    """What the ranks run; None where that is not known."""
    keep_stale: bool = False
    """Keep stored results that other sources made."""
    share: Share = field(default_factory=Share)
    priors: Priors | None = None
    proven: set[int] = field(default_factory=set, init=False)
    """Numbers of ranks with which this sweep has measured the workload: it keeps to its protocol."""
    noted: set[str] = field(default_factory=set, init=False)
    """What the user has been told of scripts."""

    def run(self) -> list[Result]:
        """Measure what is not measured yet; each result is stored before the next attempt starts.

        Returns the results of all attempts, old and new, in the matrix's order.
        """
        self._first_launches()
        owned = (plan for plan in self.plans if self.share.takes(plan.cell.slug))
        further = [(plan, attempt) for plan in owned for attempt in self._further(plan)]
        if further or any(plan.launches > 1 for plan in self.plans):
            self.progress.planned(self.planned())
        for number in sorted({attempt.launch for _, attempt in further}):
            this_round = [pair for pair in further if pair[1].launch == number]
            for plan, attempt in turns.shuffled(this_round, self.seed, number):
                self.attempt(plan, attempt)
        return self.results()

    def _first_launches(self) -> None:
        ran_out: dict[str, int] = {}  # the smallest batch of a cell that ran out of memory
        for plan, batch in turns.first_round(self.plans, self.seed):
            if not self.share.takes(plan.cell.slug):
                continue
            if batch is None:
                self.search(self, plan)
                continue
            attempt = Attempt(cell=plan.cell, batch_per_rank=batch)
            if self.attempt(plan, attempt, ran_out.get(plan.cell.slug)).outcome.kind == "oom":
                ran_out.setdefault(plan.cell.slug, batch)

    def _further(self, plan: CellPlan) -> Iterator[Attempt]:
        """The repeated launches of a cell, as far as they are known: of each batch whose first launch succeeded or is
        still to come, and of the answers of its search that were measured in full. Of launches that are stored and not
        planned, those that are measured again."""
        found = self.store.probe(plan.cell) if plan.search else None
        answers = found.found.answers if found is not None and isinstance(found.found, Verdict) else ()
        full = [result for result in self.store.of_cell(plan.cell) if not result.attempt.short]
        first = {result.attempt.batch_per_rank: result for result in full if result.attempt.launch == 1}
        again = [result.attempt for result in full if self.reuse.wants_again(result)]
        listed = [attempt.batch_per_rank for attempt in _listed(plan)]
        for batch in dict.fromkeys([*listed, *(batch for batch in answers if batch in first)]):
            result = first.get(batch)
            if result is not None and not self.reuse.wants_again(result) and not KINDS[result.outcome.kind].measured:
                continue
            numbers = {attempt.launch for attempt in again if attempt.batch_per_rank == batch}
            for number in sorted(numbers.union(range(2, plan.launches + 1)) - {1}):
                yield Attempt(cell=plan.cell, batch_per_rank=batch, launch=number)

    @cached_property
    def reuse(self) -> Reuse:
        """Which stored results count."""
        began = self.share.began
        return Reuse(store=self.store, rerun=self.rerun, sources=self.sources, keep_stale=self.keep_stale, began=began)

    @property
    def seed(self) -> int:
        """Of the order in which the cells take turns."""
        return self.plans[0].cell.measure.seed

    def results(self) -> list[Result]:
        """The stored results of all attempts of the sweep, in the matrix's order."""
        return [result for plan in self.plans for result in self.results_of(plan)]

    def results_of(self, plan: CellPlan) -> list[Result]:
        results = self.store.of_cell(plan.cell)
        if plan.search:
            return results
        return [one for one in results if not one.attempt.short and one.attempt.batch_per_rank in plan.batches]

    def planned(self) -> int:
        """How many attempts there are, as far as that is known now; a search counts as one."""
        return sum(len(plan.batch_axis) + len(list(self._further(plan))) for plan in self.plans)

    def finished(self) -> int:
        """How many of them are stored already. A search counts its stored attempts when it runs."""
        attempts = (attempt for plan in self.plans for attempt in (*_listed(plan), *self._further(plan)))
        return sum(self.reuse.stored(attempt) is not None for attempt in attempts)

    def prepare(self) -> None:
        """Start ranks for the first cell that may need them, without waiting: their imports take seconds."""
        if (first := self.first_to_measure()) is not None:
            self.executor.prepare(first)

    def first_to_measure(self) -> Cell | None:
        return next((plan.cell for plan in self.plans if self._needs_ranks(plan)), None)

    def _needs_ranks(self, plan: CellPlan) -> bool:
        """Whether an attempt is not stored, or a search has no verdict."""
        if backends.forbids(plan.cell, self.machine.hardware.device):
            return False
        if plan.search and (self.rerun or self.store.probe(plan.cell) is None or self.search_is_stale(plan)):
            return True
        attempts = (*_listed(plan), *self._further(plan))
        return any(not self._was_skipped(attempt) and self.reuse.stored(attempt) is None for attempt in attempts)

    def search_is_stale(self, plan: CellPlan) -> bool:
        """Whether other sources made a result by which the cell's search decides: not a repeated launch of its answer,
        nor one at a batch that it does not try."""
        goal, results = self.goal.of(plan.cell), self.store.of_cell(plan.cell)
        decide = [each for each in results if each.attempt.launch == 1 and goal.tries(each.attempt.batch_per_rank)]
        return any(map(self.reuse.is_stale, decide))

    def _was_skipped(self, attempt: Attempt) -> bool:
        result = self.store.result(attempt)
        return result is not None and result.outcome.kind == "skipped"

    def attempt(self, plan: CellPlan, attempt: Attempt, ran_out_at: int | None = None) -> Result:
        """The attempt's result: stored, skipped, or measured now. A smaller batch may have run out of memory."""
        if result := self.reuse.stored(attempt):
            return result
        self.share.check_claim(plan.cell.slug)
        if reason := self._reason_to_skip(attempt, ran_out_at):
            result = self._skip(plan, attempt, reason)
        else:
            result = self._measure(plan, attempt)
            self.share.check_claim(plan.cell.slug)
        self.store.finish(result)
        self.reuse.done.add(self.store.folder(attempt))
        self.progress.result(plan.label, result)
        return result

    def _reason_to_skip(self, attempt: Attempt, ran_out_at: int | None) -> str | None:
        """Its backend forbids the attempt, or a smaller batch of the cell ran out of memory."""
        if reason := backends.forbids(attempt.cell, self.machine.hardware.device):
            return reason
        return None if ran_out_at is None else f"the smaller batch {ran_out_at} ran out of memory"

    def _skip(self, plan: CellPlan, attempt: Attempt, reason: str) -> Result:
        outcome, before = Skipped(reason=reason), self.store.result(attempt)
        if before is not None and before.outcome == outcome:
            return before
        self.store.begin(attempt)
        return result_of(plan, attempt, outcome, self.machine)

    def _measure(self, plan: CellPlan, attempt: Attempt) -> Result:
        """Try once, and a second time if the machine caused the failure, not the attempt."""
        lost = self.store.lost(attempt)
        if len(lost) > 1:
            result = result_of(plan, attempt, given_up(lost), self.machine)
        else:
            self.share.check_time()
            result = self._try(plan, attempt)
        if lost:
            return result.model_copy(update={"retried": f"infrastructure: {lost[0]}"})
        if not deserves_another_try(result):
            return result
        assert isinstance(result.outcome, Failed)
        first = f"{result.outcome.fault}: {result.outcome.reason}"
        self.store.finish(result)  # the second try sets it aside
        self.progress.note(f"{plan.label}, batch {attempt.batch_per_rank}: retrying after {first}")
        return self._try(plan, attempt).model_copy(update={"retried": first})

    def _try(self, plan: CellPlan, attempt: Attempt) -> Result:
        started, began_s = datetime.now(UTC), time.monotonic()
        self.progress.attempt(plan.label, attempt.batch_per_rank, attempt.launch)
        folder, before = self.store.begin(attempt).resolve(), oom_kill.counts()
        launched, conditions = self.launch(attempt, folder)
        read_s = time.monotonic()
        wall_s = read_s - began_s
        account = account_in(folder, attempt.cell.ranks_per_node, began_s, launched.ended_s, read_s)

        def make_result(outcome: Outcome) -> Result:
            return result_of(plan, attempt, outcome, self.machine, started, wall_s, launched.isolation, self.sources)

        try:
            result = make_result(
                outcome_of_attempt(launched, before, attempt, folder, self.machine, plan.label, self._note_once)
            )
        except ValidationError as error:  # another program has written to a rank's file
            reason = f"its ranks left invalid result files: {spool.why(error)}"
            result = make_result(Failed(fault="ended", rank=None, phase=None, reason=reason))
        if result.outcome.kind in ("failed", "hang"):
            disk.check(self.store.root)  # a full disk ends the run here; this attempt stays unfinished
            self.share.check_failure(launched.silent, self.progress.note)
        self._check_workload(result)
        self.share.took(wall_s)
        return result.model_copy(update={"conditions": conditions, "account": account})

    def _check_workload(self, result: Result) -> None:
        """A workload that does not keep to its protocol ends the run here; this attempt stays unfinished."""
        ranks = result.attempt.cell.num_processes
        mistake = mistakes.mistake_in(result.outcome, self.workload_place)
        if mistake and (mistakes.is_of_samples(result.outcome) or not self._succeeded(ranks)):
            raise mistake
        if result.outcome.kind == "ok":
            if self.units is None and not self.proven and (found := mistakes.found_units(result.outcome)):
                self.progress.note(found)
            self.proven.add(ranks)

    def _succeeded(self, ranks: int) -> bool:
        """Whether an attempt with as many ranks and these sources did: a mistake is then of one cell alone."""
        ok = (one for one in self.results() if one.outcome.kind == "ok" and not self.reuse.changed(one))
        return any(one.attempt.cell.num_processes == ranks for one in ok)

    def _note_once(self, text: str) -> None:
        if text not in self.noted:
            self.noted.add(text)
            self.progress.note(text)

    def launch(self, attempt: Attempt | Walk | Audit, folder: Path) -> tuple[LaunchResult, Conditions]:
        """Write the files of a launch to ``folder``, run its ranks, and record what else the machine did."""
        hardware = self.machine.hardware
        assert isinstance(hardware, Hardware)  # this machine's own
        cell = attempt.cell
        environment = added_environment(cell.ranks_per_node, hardware, os.environ, nodes=cell.num_nodes)
        files = attempt_files.files(
            attempt,
            self.units,
            hardware.device,
            environment,
            str(folder),
            workload_folder=self.workload_folder,
            check=attempt.cell.num_processes not in self.proven,
        )
        for name, text in files.items():
            spool.write_text(folder / name, text)
        self.beside.begin()  # for walks and audits too: else the next attempt takes their work for another program's
        try:
            launched = self.executor.run(attempt.cell, folder, self.limits, self._on_beat)
        finally:
            shutil.rmtree(spool.checkpoint_folder(folder), ignore_errors=True)
        return launched, self.beside.end()

    def _on_beat(self, beat: Beat) -> None:
        if beat.phase == Stage.COMPILE:
            self.progress.waiting("building DeepSpeed's extension, once")
        else:
            self.progress.beat(beat.phase, beat.step, beat.steps)
        self.beside.look(beat.phase)


def _listed(plan: CellPlan) -> list[Attempt]:
    """The first launches of the batches that the matrix names."""
    return [Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches]
