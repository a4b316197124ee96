"""A workload that does not keep to its protocol ends a sweep, unless an attempt has shown that it does."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from examples import MACHINE, cell, rank
from rich.console import Console
from test_sweep import sweep_of

from bench.cli.progress import Progress
from bench.errors import InputError
from bench.launch.executor import LaunchResult
from bench.launch.watch import Limits, OnBeat
from bench.records.cell import Cell
from bench.records.outcome import Failed, Hang, Ok
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankError, RankOutcome
from bench.records.sources import Sources
from bench.store import spool
from bench.store.run_folder import Store
from bench.store.spool import Spec
from bench.sweep.mistakes import found_units, mistake_in

SAYS = InputError("the workload's units name Blok", allowed="Model, Block", fix="rename it")
MISTAKE = RankError(rank=0, phase="setup", error=f"WorkloadError: {SAYS}", traceback="…", at=1.0)


class Ranks:
    """Ends its attempts in the given way, one after the other."""

    def __init__(self, *ends: list[RankOutcome]) -> None:
        self.ends: Iterator[list[RankOutcome]] = iter(ends)
        self.specs: list[Spec] = []

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        self.specs.append(spool.read(folder / "spec.json", Spec))
        return LaunchResult(ranks=next(self.ends), isolation="fork")

    def prepare(self, cell: Cell) -> None: ...

    def close(self) -> None: ...


WELL: list[RankOutcome] = [rank(number).model_copy(update={"units": ("Block",)}) for number in range(2)]
PLANS = [CellPlan(cell=cell(name), batches=(1,), axes={"backend": name}) for name in ("ddp", "fsdp")]


def sweep_with(folder: Path, ranks: Ranks, sources: Sources | None = None) -> str:
    """Sweep both cells; returns what was said."""
    store, said = Store(folder), io.StringIO()
    with store.open(MACHINE, [plan.cell for plan in PLANS], ""), Progress(Console(file=said, width=200)) as progress:
        sweep = sweep_of(PLANS, store, progress, [], ranks, None, sources=sources)
        replace(sweep, units=None, workload_folder="/beside", workload_place="mine.yaml:3").run()
    return said.getvalue()


def test_a_mistake_is_one_message_and_stores_nothing(tmp_path: Path) -> None:
    ranks = Ranks([MISTAKE, rank(1)])
    with pytest.raises(InputError) as raised:
        sweep_with(tmp_path / "run", ranks)
    assert str(raised.value) == (
        "mine.yaml:3: workload.name: the workload's units name Blok\n  allowed: Model, Block\n  rename it"
    )
    assert len(ranks.specs) == 1
    assert not list(tmp_path.rglob("result.json"))


def test_a_mistake_after_a_success_is_of_its_cell_alone(tmp_path: Path) -> None:
    sweep_with(tmp_path / "run", Ranks(WELL, [MISTAKE, rank(1)]))
    outcomes = {result.outcome.kind: result.outcome for result in Store(tmp_path / "run").results()}
    assert set(outcomes) == {"ok", "failed"}
    assert outcomes["failed"].fault == "workload"


def test_samples_that_make_no_batch_end_the_run_even_after_a_success(tmp_path: Path) -> None:
    """A batch of one sample always succeeds, and every other backend would say the same once more."""
    says = InputError(
        "samples of the workload cannot be stacked to a batch: ids is (3,)", allowed="dicts", fix="collate"
    )
    unstacked = MISTAKE.model_copy(update={"error": f"SamplesError: {says}"})
    with pytest.raises(InputError) as raised:
        sweep_with(tmp_path / "run", Ranks(WELL, [unstacked, rank(1)]))
    assert raised.value.problem == "samples of the workload cannot be stacked to a batch: ids is (3,)"
    assert (raised.value.allowed, raised.value.fix) == ("dicts", "collate")
    assert [result.outcome.kind for result in Store(tmp_path / "run").results()] == ["ok"]


def test_a_success_of_other_sources_proves_nothing(tmp_path: Path) -> None:
    sweep_with(tmp_path / "run", Ranks(WELL, WELL), {"mine.py": "before"})
    with pytest.raises(InputError, match="units name Blok"):
        sweep_with(tmp_path / "run", Ranks([MISTAKE, rank(1)]), {"mine.py": "after"})
    assert [result.outcome.kind for result in Store(tmp_path / "run").results()] == ["ok", "ok"]


def test_the_first_attempt_checks_and_says_which_units_were_found(tmp_path: Path) -> None:
    ranks = Ranks(WELL, WELL)
    said = sweep_with(tmp_path / "run", ranks)
    assert [spec.check for spec in ranks.specs] == [True, False]
    assert {(spec.units, spec.workload_folder) for spec in ranks.specs} == {(None, "/beside")}
    assert said.count("units: Block, the blocks that the model repeats") == 1


def test_other_outcomes_are_no_mistakes() -> None:
    assert mistake_in(Failed(fault="error", rank=0, phase="setup", reason="ValueError: no"), None) is None
    assert mistake_in(Ok(ranks=(rank(0), rank(1))), None) is None


def test_units_are_said_where_an_attempt_shows_them() -> None:
    assert (
        found_units(Ok(ranks=(rank(0), rank(1))))
        == "units: none, because the model repeats no block; it is sharded as a whole"
    )
    assert found_units(Hang(reason="no result")) is None
