"""`bench calibrate` for real, and a run on the same machine that uses it."""

from harness import Bench
from kept import KeptBench

from bench.records.calibration import Calibration
from bench.store.run_folder import Store

BENCH = KeptBench


def test_a_calibration_is_stored_and_decides_for_a_later_run(bench: Bench) -> None:
    state = str(bench.folder / "state")
    matrix = bench.matrix(
        matrix={"backend": "single", "num_cams": [1, 2], "batch": 2},
        launch={"num_processes": 1},
        workload={"name": "toy:Toy", "sleep_s": 0.02},
        choices=["num_cams"],
    )
    said = bench("calibrate", matrix, "--launches", "10", "measure.launches=3", BENCH_STATE=state)
    assert "4 degrees of freedom" in said
    (file,) = (bench.folder / "state").glob("calibration-*.json")
    learnt = Calibration.model_validate_json(file.read_bytes())
    assert (learnt.cells, learnt.launches, learnt.degrees) == (2, 3, 4)
    assert learnt.sd > 0
    assert learnt.rates.bf16_flops_per_s >= learnt.rates.fp32_flops_per_s > 1e8
    assert learnt.rates.bandwidth_bytes_per_s > 1e8
    assert learnt.rates.link_bytes_per_s > 1e6
    said = bench("run", matrix, "--out", str(bench.folder / "run"), BENCH_STATE=state)
    answers = [line for line in said.splitlines() if line.startswith(("## Train with", "## No sure answer"))]
    assert len(answers) == 1  # num_cams is a choice of this matrix
    assert Store(bench.folder / "run").calibration() == learnt
    report = bench(
        "report", "--full", str(bench.folder / "run"), "--compare", "num_cams", BENCH_STATE=str(bench.folder)
    )
    assert f"`bench calibrate` on {learnt.measured_at[:10]}, 4 degrees of freedom" in report.replace("\\`", "`")


def test_a_search_cannot_calibrate(bench: Bench) -> None:
    matrix = bench.matrix(matrix={"backend": "single", "batch": "probe"}, launch={"num_processes": 1})
    assert "name a batch" in bench("calibrate", matrix, BENCH_STATE=str(bench.folder / "state"), expect=2)
