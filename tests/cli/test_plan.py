"""`bench plan`, with a model that is really traced, and what it refuses."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from commands import MATRICES, bench
from examples import CUDA_MACHINE

from bench.cli.plan import device_of
from bench.machine import detect, record
from bench.records.calibration import Paces

pytestmark = pytest.mark.usefixtures("elsewhere")

ROOT = MATRICES.parent
MATRIX = """
workload: {name: pi07, preset: tiny, n_layers: 2, vision_layers: 2, num_cams: 1}
matrix: {backend: [ddp, fsdp2, zero3], batch: probe}
include: [{backend: single, batch: 4}]
"""
PAIRS = """
import torch
from torch import nn


def pairs():
    def loss(z):
        return (z @ z.T).logsumexp(1).mean()  # each sample with each

    return nn.Linear(8, 8), torch.randn(64, 16, 8), lambda z, _: loss(z.flatten(0, 1))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that these tests have traced."""
    return tmp_path_factory.mktemp("traced")


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: Path) -> Path:
    monkeypatch.setenv("BENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "programs").symlink_to(traced)
    (tmp_path / "m.yaml").write_text(MATRIX)
    return tmp_path / "m.yaml"


def plan(*arguments: object) -> Result:
    return bench("plan", *map(str, arguments))


@pytest.mark.parametrize(("device", "bf16"), [("V100-32GB", False), ("T4", False), ("A100-80GB", True), ("mine", True)])
def test_a_device_without_bf16_is_planned_in_fp32(tmp_path: Path, device: str, bf16: bool) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("devices: {mine: {memory: 24GiB}}")
    assert device_of(device, 8, own, None)[1].bf16 == bf16


def test_a_plan_needs_no_device_and_the_second_traces_nothing(matrix: Path) -> None:
    (matrix.parent / "state" / "programs").unlink()  # nothing is traced yet
    first = plan(matrix, "--device", "A100-80GB", "--ranks", "8", "--price", "2.5/h")
    assert (first.exit_code, first.stderr.count(": traced ")) == (0, 2), "under autocast, and in bf16"
    for words in ("8 × A100-80GB with 80.00 GiB", "Largest batch per rank", "lower bounds", "fsdp2", "compute"):
        assert words in first.output
    again = plan(matrix, "--device", "A100-80GB", "--ranks", "8", "--format", "json")
    assert again.stderr == ""
    rows = json.loads(again.stdout)
    assert [row["backend"] for row in rows] == ["ddp", "fsdp2", "zero3", "single"]
    assert rows[-1]["batch"] == 4
    assert all(row["needed_bytes"] <= 80 * 2**30 for row in rows)
    listed = list(csv.DictReader(io.StringIO(plan(matrix, "--device", "H100", "--format", "csv").stdout)))
    assert len(listed) == 4

    tight = plan(matrix, "--device", "A100-80GB", "--memory", "1600MiB", "--format", "md")
    assert tight.exit_code == 1
    assert "Cannot fit at any batch that may be tried: ddp" in tight.stdout

    own = matrix.with_name("devices.yaml")
    own.write_text("devices: {mine: {memory: 24GiB, bf16_flops_per_s: 1.0e+14}}\n")
    assert "× mine with 24.00 GiB" in plan(matrix, "--device", "mine", "--devices", own).stdout

    asked = plan(matrix, "launch.num_processes=16", "--device", "H100", "--format", "md")
    assert "16 × H100" in asked.stdout
    sixteen = matrix.with_name("sixteen.yaml")
    sixteen.write_text(matrix.read_text() + "launch: {num_processes: 16}")
    assert "2 × H100" in plan(sixteen, "--device", "H100", "--ranks", "2", "--format", "md").stdout

    here = plan(matrix)
    assert here.exit_code == 0
    assert "this machine" in here.stdout


def test_the_memory_of_a_rank_is_its_share_of_the_host_and_a_limit_on_a_gpu_is_torchs_alone(matrix: Path) -> None:
    def capacities(*arguments: object) -> list[int]:
        return [row["capacity_bytes"] for row in json.loads(plan(matrix, *arguments, "--format", "json").stdout)]

    host = detect().memory_bytes
    assert capacities("launch.num_processes=4", "launch.memory_limit=1TiB") == [*[host // 4] * 3, host]
    assert capacities("launch.num_processes=4", "launch.memory_limit=1TiB", "--memory", "1GiB") == [2**30] * 4
    limited = capacities("launch.memory_limit=8GiB", "--device", "H100")
    assert all(8 * 2**30 < found < 10 * 2**30 for found in limited)


def test_a_search_is_planned_with_the_batches_that_it_tries(matrix: Path) -> None:
    options = ("--select", "backend=ddp", "--device", "H100", "--format", "json")
    (row,) = json.loads(plan(matrix, "probe.max_batch=30", "probe.granularity=8", *options).stdout)
    assert (row["batch"], row["largest_batch"]) == (24, 24)
    tight = plan(matrix, "probe.granularity=1024", "probe.max_batch=1024", "--memory", "2GiB", *options)
    (row,) = json.loads(tight.stdout)
    assert (row["batch"], row["largest_batch"], row["fits"], tight.exit_code) == (1024, 0, "no", 1)
    mixed = plan(matrix, "matrix.batch=[1, probe]", "probe.granularity=1024", "probe.max_batch=1024", *options)
    rows = json.loads(mixed.stdout)
    assert [(row["batch"], row["fits"]) for row in rows] == [(1, "yes"), (1024, "yes")]


def test_a_global_batch_bounds_the_plan_as_it_bounds_a_run(matrix: Path) -> None:
    options = ("--select", "backend=ddp", "--device", "H100", "--ranks", "2", "--axis", "batch=2,3,4,16")
    shown = plan(matrix, "train.global_batch=32", *options)
    words = "left out: batch 3, which does not divide the 16 samples of a rank (32 / 2 ranks)\n"
    assert words in shown.stdout
    assert "accumulate" in shown.stdout
    data = plan(matrix, "train.global_batch=32", *options, "--format", "json")
    assert words in data.stderr
    rows = json.loads(data.stdout)
    assert [(row["batch"], row["accumulate"], row["largest_batch"]) for row in rows] == [
        (2, 8, 16),
        (4, 4, 16),
        (16, 1, 16),
    ]
    assert "accumulate |" not in plan(matrix, *options).stdout
    axis = plan(matrix, *options, "--axis", "accumulate=1,2", "--format", "md").stdout
    assert "ddp accumulate=2 " in axis
    assert "| accumulate |" not in axis


def test_what_has_no_program_is_listed_and_not_guessed(matrix: Path) -> None:
    done = plan(matrix, "train.optimizer=muon", "--select", "backend=ddp", "--device", "H100")
    assert "muon keeps other state than AdamW" in done.stdout
    options = ("train.optimizer=muon", "--select", "backend=ddp", "--device", "H100", "--format")
    (listed,) = json.loads(plan(matrix, *options, "json").stdout)
    assert (listed["backend"], "muon" in listed["reason"]) == ("ddp", True)
    done = plan(matrix, "workload.branch_sync=none", "--select", "backend=ddp", "--device", "H100")
    assert "could not be traced: NotImplementedError" in done.stdout
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "A100-80G"), ("'A100-80G' is not a known device", "did you mean 'A100-80GB'?")),
        (("--device", "H100", "--price", "cheap"), ("'cheap' is not a price", "2.5/h")),
        (("--device", "H100", "--memory", "lots"), ("--memory", "is no such quantity")),
        (("--devices", "missing.yaml"), ("missing.yaml",)),
        (("--device", "H100", "--ranks", "100000000000000000000"), ("--ranks", "1024")),
        (("--ranks", "4", "launch.num_processes=1"), ("--ranks: launch.num_processes is given, too",)),
        (("--check", "reports/cpu-tiny", "--price", "2/h"), ("MATRIX, --price would change them", "leave out")),
    ],
)
def test_bad_input_is_one_message(matrix: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = plan(matrix, *arguments)
    assert done.exit_code == 2
    assert all(word in done.stderr for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: {mine: {memory: lots}}", ("devices.mine.memory", "is no such quantity")),
        ("devices: {mine: {memry: 24GiB}}", ("devices.mine.memory", "is required")),
        ("[]", ("holds no devices",)),
    ],
)
def test_a_file_of_devices_is_checked(matrix: Path, text: str, words: tuple[str, ...]) -> None:
    own = matrix.with_name("devices.yaml")
    own.write_text(text)
    done = plan(matrix, "--device", "mine", "--devices", own)
    assert done.exit_code == 2
    assert all(word in done.stderr for word in words)


@pytest.mark.usefixtures("matrix")
def test_a_run_can_be_held_against_its_plan(tmp_path: Path) -> None:
    run = tmp_path / "cpu-tiny"
    shutil.copytree(ROOT / "reports" / "cpu-tiny", run)
    (run / "plan.json").unlink(missing_ok=True)
    done = plan("--check", run)
    assert done.exit_code == 1
    assert "9 peaks: median error" in done.stdout
    assert done.stdout.count("CONFIRMED") + done.stdout.count("REFUTED") == 9
    rows = json.loads(plan("--check", run, "--format", "json").stdout)
    assert (len(rows), rows[0]["confirmed"] in (True, False)) == (9, True)
    assert "Plan and measurement" in bench("report", "--full", str(run)).stdout  # the run's folder keeps the plan
    (run / "plan.json").write_text("{")
    damaged = bench("report", "--full", str(run))
    assert ("Plan and measurement" in damaged.stdout, "left out: " in damaged.stderr) == (False, True)
    assert "plan.json" in damaged.stderr


def test_memory_that_grows_faster_than_the_batch_has_no_plan(matrix: Path) -> None:
    matrix.with_name("pairs.py").write_text(PAIRS)
    matrix.write_text("workload: {name: ./pairs.py:pairs}\nmatrix: {backend: single, batch: probe}\n")
    done = plan(matrix, "--device", "H100")
    assert "does not grow in proportion to the batch: the peak of batch 256" in done.stdout
    assert done.exit_code == 1


def test_counting_tensors_needs_a_second_warm_up_step(matrix: Path) -> None:
    counted = ("measure.count_tensors=true", "measure.warmup_steps=1")
    done = bench("run", str(matrix), "--dry-run", *counted)
    assert (done.exit_code, "DDP makes its buckets anew in step 2" in done.stderr) == (2, True)


def test_a_run_teaches_a_plan_to_estimate_steps(matrix: Path) -> None:
    state = matrix.with_name("state")
    learned = bench("calibrate", "--from", str(ROOT / "reports" / "plan-tiny"))
    assert learned.exit_code == 0, learned.output
    (file,) = state.glob("paces-*.json")
    assert "Of cells that are left out, estimates are off by" in learned.stdout
    cells = ("workload.preset=tiny", "--select", "backend=fsdp2", "launch.num_processes=2", "matrix.batch=32")
    cells += ("launch.mixed_precision=bf16",)  # as in the run that taught it
    fitted = Paces.model_validate_json(file.read_bytes())
    for machine, known in ((CUDA_MACHINE, False), (record(detect()), True)):
        file.write_text(fitted.model_copy(update={"machine": machine}).model_dump_json())
        (row,) = json.loads(plan("backends", *cells, "--format", "json").stdout)
        assert (row["step_s_estimated"] is not None) == known
    shown = plan("backends", *cells, "--format", "md").stdout
    assert "Time of a step: estimated" in shown
    assert f"{fitted.steps} measured steps of plan-tiny, fitted at {fitted.fitted_at}" in shown
    # The pace of this CPU is not that of another device.
    assert "estimated" not in plan("backends", *cells, "--device", "H100", "--format", "md").stdout


def test_a_calibration_that_could_not_be_stored_launches_nothing(matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix.with_name("file").write_text("")
    monkeypatch.setenv("BENCH_STATE", str(matrix.with_name("file") / "state"))
    done = bench("calibrate", str(matrix), "matrix.batch=1", "include=[]", "--out", str(matrix.with_name("run")))
    assert (done.exit_code, "BENCH_STATE chooses another one" in done.stderr) == (2, True), done.output
    assert not matrix.with_name("run").exists()


def test_one_cell_teaches_nothing(matrix: Path) -> None:
    done = bench("calibrate", "--from", str(ROOT / "reports" / "cpu-tiny"))
    assert done.exit_code == 2
    assert "3 measured cells with a plan: too few" in done.stderr
    done = bench("calibrate", str(matrix), "--from", str(ROOT / "reports" / "cpu-tiny"))
    assert (done.exit_code, "it launches nothing" in done.stderr) == (2, True)
    done = bench("calibrate", "--from", str(ROOT / "reports" / "cpu-tiny"), "--launches", "5")
    assert (done.exit_code, "--launches" in done.stderr) == (2, True)


def test_a_plan_is_of_a_matrix_or_of_a_run() -> None:
    done = plan("--device", "H100")
    assert (done.exit_code, "nothing to plan" in done.stderr) == (2, True)
