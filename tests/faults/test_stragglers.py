"""One rank is slow on purpose; the report names it and its phase, on each way of sharding.

A rank that shares its core with another program is a matter of the machine: see tests/perf/straggler_trials.py.
"""

from itertools import product
from pathlib import Path

import pytest
from table import FaultBench

from bench.report.doubts import doubts
from bench.report.rows import Row, Sampled
from bench.report.summary import summarize
from bench.statistics.straggler import Straggler
from bench.store.run_folder import Store

BACKENDS = ("ddp", "fsdp", "fsdp2", "zero2", "zero3")
PHASE = {"loader": "dataload_wait", "forward": "forward"}
PLANTED = [*product(BACKENDS, PHASE)]

pytestmark = pytest.mark.alone  # ranks are compared by their times


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = FaultBench(tmp_path_factory.mktemp("stragglers"))
    matrix = bench.matrix(
        workload={"name": "straggler:Toy", "slow_s": 0.1},
        matrix={"backend": list(BACKENDS), "slow": list(PHASE), "width": 256, "batch": 4},
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 16},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    bench.assert_gone()
    return bench.folder / "run"


@pytest.fixture(scope="module")
def rows(run: Path) -> dict[tuple[object, object], Row]:
    summary = summarize(Store(run).results())
    return {(row.settings["backend"], row.settings["slow"]): row for row in summary.rows}


def straggler(row: Row) -> Straggler | None:
    assert isinstance(row.measured, Sampled), row.reason
    assert row.measured.critical_rank
    return row.measured.critical_rank.straggler


@pytest.mark.parametrize(("backend", "slow"), PLANTED)
def test_a_slow_rank_is_named_with_its_phase(rows: dict[tuple[object, object], Row], backend: str, slow: str) -> None:
    found = straggler(rows[backend, slow])
    assert (found.rank, found.phase) == (1, PHASE[slow])
    assert found.cost_s > 0.05


@pytest.mark.parametrize(("backend", "slow"), PLANTED)
def test_it_does_more_work_itself_in_that_phase_alone(
    rows: dict[tuple[object, object], Row], backend: str, slow: str
) -> None:
    measured = rows[backend, slow].measured
    assert isinstance(measured, Sampled)
    assert measured.critical_rank
    apart_s = {
        phase.name: phase.own_s.max_s - phase.own_s.min_s
        for phase in measured.critical_rank.phases
        if phase.own_s and phase.name != "total"
    }
    assert max(apart_s, key=apart_s.__getitem__) == PHASE[slow]


def test_rows_to_doubt_name_it(run: Path) -> None:
    said = {
        (doubt.row.settings["backend"], doubt.row.settings["slow"]): doubt.reason
        for doubt in doubts(summarize(Store(run).results()))
        if doubt.row and "straggler" in doubt.reason
    }
    assert set(said) == set(PLANTED)
    assert "rank 1 is a straggler: the others wait" in said["ddp", "loader"]
    assert "dataload_wait" in said["ddp", "loader"]
