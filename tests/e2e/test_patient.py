"""Every process group of a rank waits for bench, which names a hang, and gives up on no collective by itself."""

from harness import Bench
from kept import KeptBench

from bench.records.outcome import Ok

BENCH = KeptBench
MEASURE = {"warmup_steps": 1, "steps": 2, "phase_steps": 0}


def test_no_group_gives_up_by_itself(bench: Bench) -> None:
    """The model looks at its groups as it runs: DeepSpeed clones the world, FSDP2's mesh splits it."""
    cells = [{"backend": backend, "batch": 2} for backend in ("ddp", "fsdp", "fsdp2", "zero1", "zero3")]
    cells.append({"backend": "fsdp2", "dp_replicate_size": 2, "batch": 2})
    matrix = bench.matrix(workload={"name": "patient:patient"}, matrix={}, include=cells, measure=MEASURE)
    bench("run", matrix, "--out", str(bench.folder / "run"))
    assert {type(result.outcome) for result in bench.results()} == {Ok}
