"""Matrices over the toy workload of tests/toy_workloads.py, for tests."""

from pathlib import Path
from typing import Any

from bench.matrix import Matrix, expand
from bench.matrix.matrix_file import WorkloadChoice
from bench.records.machine import Hardware
from bench.records.plan import CellPlan

CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=16 * 2**30)
GPUS = Hardware(device="cuda", devices=4, cores=64, memory_bytes=80 * 2**30)
TOY = "tests.toy_workloads:Toy"
MATRICES = Path(__file__).parents[1] / "matrices"


def matrix_of(**fields: Any) -> Matrix:
    toy = WorkloadChoice.model_validate({"name": TOY, **fields.pop("workload", {})})
    return Matrix(name="test", workload=toy, **fields)


def plans_of(**fields: Any) -> list[CellPlan]:
    return expand(matrix_of(**fields), CPU)


def points(plans: list[CellPlan]) -> set[tuple[str, int]]:
    return {(plan.cell.id, batch) for plan in plans for batch in plan.batch_axis}
