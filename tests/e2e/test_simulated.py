"""Worlds of 8, 16 and 64 ranks, of which one runs: what every backend issues, against the formulas of the report.

tests/e2e/test_communication.py and test_every_backend.py hold the same formulas against two real ranks.
"""

import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
from examples import result
from harness import HERE, ROOT

from bench.launch import attempt_files
from bench.launch.environment import added_environment, launch_environment
from bench.records.cell import Attempt, Cell, Measure
from bench.records.machine import Hardware
from bench.records.outcome import Ok
from bench.records.rank_outcome import RankOk
from bench.report.communication import communication
from bench.report.summary import summarize
from bench.store import spool

BLOCKS = 3
GROUPS = BLOCKS + 1
"""Of sharded weights: a block each, and what is in no block."""
BACKENDS = ("ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3")
WORLDS = (8, 16, 64)
OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter")
SCALARS_BYTES = 4000
"""Of 64 ranks: five metrics each."""


class Case(NamedTuple):
    backend: str
    ranks: int
    replicas: int = 1
    rank: int = 0
    kept: bool = False
    """Whether weights stay gathered after forward."""
    bucket_mb: int = 25

    @property
    def shape(self) -> str:
        options = "-kept" * self.kept + f"-{self.bucket_mb}" * (self.bucket_mb != 25)
        return f"{self.backend}-{self.replicas}x{self.ranks // self.replicas}{options}"

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.rank}"


CASES = [
    *(Case(backend, ranks) for backend in BACKENDS for ranks in WORLDS),
    # ZeRO-3 asks whether rank 0 has the same parameters, and rank 0 does not exist.
    *(Case(backend, 8, rank=5) for backend in BACKENDS if backend != "zero3"),
    *(Case("fsdp2", ranks, replicas) for ranks, replicas in ((8, 2), (8, 8), (64, 4))),
    Case("fsdp2", 64, 4, rank=37),
    Case("fsdp2", 8, kept=True),
    Case("fsdp2", 64, 4, kept=True),
    Case("ddp", 8, bucket_mb=1),
    Case("ddp", 8, bucket_mb=26),
]


def cell_of(case: Case) -> Cell:
    train: dict[str, Any] = {"dp_replicate_size": case.replicas, "bucket_mb": case.bucket_mb}
    train |= {"reshard_after_forward": False} if case.kept else {}
    return Cell.model_validate(
        {
            "backend": case.backend,
            "workload": "even:Even",
            "options": {"blocks": BLOCKS},
            "num_processes": case.ranks,
            "mixed_precision": "bf16",
            "measure": Measure(warmup_steps=2, steps=1, phase_steps=1),
            "train": train,
        }
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, RankOk]:
    folder = tmp_path_factory.mktemp("simulated")
    for case in CASES:
        here = folder / case.name
        here.mkdir()
        attempt = Attempt(cell=cell_of(case), batch_per_rank=2)
        written = attempt_files.files(attempt, ("Block",), "cpu", {}, str(here), workload_folder=str(HERE))
        for name, text in written.items():
            (here / name).write_text(text)
    hardware = Hardware(device="cpu", devices=0, cores=1, memory_bytes=2**33)
    added = added_environment(1, hardware, {}) | {"PYTHONPATH": f"{HERE}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(HERE / "simulated.py"), str(folder)],
        env=launch_environment(os.environ, added),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for case in CASES:
        outcomes = spool.read_ranks(folder / case.name, case.ranks)
        assert [type(one) for one in outcomes] == [RankOk], (case, outcomes, done.stderr[-2000:])
        found[case] = outcomes[0]
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bytes_are_those_of_the_formula(ran: dict[Case, RankOk], case: Case) -> None:
    cell = cell_of(case)
    ranks = tuple(ran[case].model_copy(update={"rank": rank}) for rank in range(case.ranks))
    stored = result(Ok(ranks=ranks), backend=cell.backend, train=cell.train)
    (rows,) = summarize([stored]).cells
    sent = communication(rows)
    assert {one.operation for one in sent} == {one for one in OPERATIONS if calls_of(ran[case], one)}
    for one in sent:
        assert one.ratio == pytest.approx(1, rel=0.01), one


def calls_of(rank: RankOk, operation: str, group_size: int | None = None) -> int:
    """Of a step among more than one rank, without the gather of the losses and what clipping and DeepSpeed ask all
    ranks: a few scalars."""
    parts = [one for one in rank.traffic or () if one.operation == operation and one.group_size > 1]
    large = [one for one in parts if one.payload_bytes > SCALARS_BYTES * one.calls]
    return sum(one.calls for one in large if group_size in (None, one.group_size))


@pytest.mark.parametrize("case", [case for case in CASES if "fsdp" in case.backend], ids=lambda case: case.name)
def test_fsdp_gathers_and_reduces_once_a_group(ran: dict[Case, RankOk], case: Case) -> None:
    """Units are gathered for backward too, the rest is kept."""
    shards, keeps = case.ranks // case.replicas, case.kept or case.backend == "fsdp_grad_op"
    if shards > 1:
        assert calls_of(ran[case], "all_gather", shards) == GROUPS + (0 if keeps else BLOCKS)
        assert calls_of(ran[case], "reduce_scatter", shards) == GROUPS
    if case.replicas > 1:
        assert calls_of(ran[case], "all_reduce", case.replicas) == GROUPS


@pytest.mark.parametrize(("bucket_mb", "calls"), [(1, BLOCKS + 1), (25, 2), (26, 1)])
def test_ddp_reduces_once_a_bucket(ran: dict[Case, RankOk], bucket_mb: int, calls: int) -> None:
    """The gradients of a block fill 1 MiB, torch's default for the first bucket. What is left fills no other one."""
    assert calls_of(ran[Case("ddp", 8, bucket_mb=bucket_mb)], "all_reduce") == calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_do_not_depend_on_the_number_of_ranks(ran: dict[Case, RankOk], backend: str) -> None:
    by_world = {
        ranks: {operation: calls_of(ran[Case(backend, ranks)], operation, ranks) for operation in OPERATIONS}
        for ranks in WORLDS
    }
    assert len({tuple(one.items()) for one in by_world.values()}) == 1, by_world
    assert any(by_world[8].values())


def test_ranks_of_one_world_issue_the_same(ran: dict[Case, RankOk]) -> None:
    for case in CASES:
        if case.rank:
            assert ran[case].traffic == ran[case._replace(rank=0)].traffic


def test_every_cell_runs_in_the_regime_that_it_asks_for(ran: dict[Case, RankOk]) -> None:
    for case, rank in ran.items():
        assert (rank.regime.world_size, rank.regime.replicas) == (case.ranks, case.replicas)
