"""Modules of a workload that do more than they should when a rank server imports them."""

from table import FaultBench


def test_servers_that_initialize_cuda_are_left_for_own_launches(bench: FaultBench) -> None:
    matrix = bench.matrix(workload={"name": "inits_cuda:Toy"}, matrix={"backend": "ddp", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initializes CUDA" in output
    [result] = bench.results()
    assert (result.outcome.kind, result.isolation) == ("ok", "launch")
