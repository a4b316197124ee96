"""The precision of float32 products, which a workload may lower, is observed and is no like for like."""

from harness import Bench, reading
from kept import KeptBench

from bench.records.outcome import Ok

BENCH = KeptBench


def test_a_lower_precision_is_observed_told_and_not_compared(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "reduced:Reduced"},
        matrix={"backend": ["single"], "precision": ["highest", "high", "medium"], "batch": 4},
        launch={"num_processes": 1, "mixed_precision": "no"},
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0},
    )
    run = str(bench.folder / "run")
    bench("run", matrix, "--out", run)
    outcomes = {str(result.axes["precision"]): result.outcome for result in bench.results()}
    seen = {name: one.ranks[0].regime.float32_products for name, one in outcomes.items() if isinstance(one, Ok)}
    assert seen == {"highest": None, "high": "tf32", "medium": "bf16"}
    report = reading("report", "--full", "--compare", "precision", run, "--format", "md")
    assert "its float32 matrix products are computed as bf16" in report
    assert "float32 (as bf16)" in report
    assert "float32_products (known of one side alone)" in report
