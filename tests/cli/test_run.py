"""`bench run` and `bench probe`, without a launch."""

import re
from pathlib import Path

import pytest
from commands import ALL_EIGHT, QUICKSTART, bench
from examples import ok, result, rss
from fake_nvml import Driver

from bench import machine
from bench.cli import quantities, selection
from bench.errors import InputError
from bench.matrix import run_plan
from bench.records.cell import Attempt
from bench.records.verdict import Answer, Goal, Probe, Verdict
from bench.store.run_folder import Store

pytestmark = pytest.mark.usefixtures("elsewhere")
OF_EXAMPLES = "measure: {warmup_steps: 1, phase_steps: 2}\n"
"""Steps as in the results of tests/examples.py; results with others are measured again."""


def test_a_dry_run_shows_every_cell_with_what_it_would_be_launched_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = bench("run", QUICKSTART, "--dry-run", "launch.mixed_precision=bf16").output
    for backend in ("single", "ddp", "fsdp2", "zero2"):
        assert f"{backend}-" in output
    written = re.findall(r"^  accelerate\.yaml( \(as for GPUs, .*\))?:$", output, re.MULTILINE)
    assert [bool(why) for why in written] == [False, True, True, True]
    assert output.count("  command of each batch: ") == 4
    assert "mixed_precision: bf16" in output
    assert "fsdp_transformer_layer_cls_to_wrap: InterleavedLayer" in output
    assert output.count("use_cpu: false") == output.count("set outside the config: device cpu") == 3


def test_a_dry_run_says_how_often_each_batch_accumulates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    axes = ["--axis", "backend=ddp", "--axis", "global_batch=8"]
    output = bench("run", QUICKSTART, "--dry-run", *axes, "--axis", "batch=1,4").output
    assert (
        "set outside the config: device cpu, autocast off, accumulate 4 at batch 1, accumulate 1 at batch 4\n" in output
    )
    output = bench("run", QUICKSTART, "--dry-run", *axes, "--axis", "batch=probe").output
    assert "accumulate up to a global batch of 8\n" in output
    output = bench("run", QUICKSTART, "--dry-run", "--axis", "backend=ddp", "train.accumulate=2").output
    assert "set outside the config: device cpu, autocast off, accumulate 2\n" in output


@pytest.mark.parametrize("folder", ["file", "file/run", "/proc/run", "other"])
def test_a_dry_run_refuses_a_folder_that_a_run_could_not_use(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    said = bench("run", QUICKSTART, "--dry-run", "--out", tmp_path / folder)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "choose another folder with --out" in said.stderr or "--out chooses another folder" in said.stderr
    assert bench("run", QUICKSTART, "--dry-run", "--out", tmp_path / "new/run").exit_code == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "other"]


def test_a_dry_run_says_what_would_be_skipped() -> None:
    output = bench("run", QUICKSTART, "--dry-run", "--axis", "backend=zero3", "train.optimizer=none").output
    assert "skipped: DeepSpeed's ZeRO needs an optimizer" in output
    assert "accelerate.yaml" not in output


def test_a_search_has_a_dry_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = bench("probe", "--backend", "fsdp,zero2", "--dry-run", "--max-batch", "64", "--tolerance", "3%").output
    assert "fsdp  batch per rank probe" in output
    assert output.count("  search: max_batch 64, granularity 1, tolerance 3.0 %, headroom 90.0 %\n") == 2
    assert output.count("  memory limit: 320 MiB a rank, enforced\n") == 2
    assert output.count("  command of each batch: ") == output.count("/b<batch>\n") == 2


def test_a_search_is_narrowed_as_a_run_is() -> None:
    def cells(*options: str) -> list[str]:
        done = bench("probe", "matrix.yaml", "--dry-run", *options)
        assert done.exit_code == 0, done.output
        return re.findall(r"^\w+-\w+  (.+)  batch per rank probe$", done.output, re.MULTILINE)

    Path("matrix.yaml").write_text(
        "workload: {preset: tiny}\nmatrix: {backend: [ddp, fsdp], batch: 1}\ninclude: [{backend: zero2}]\n"
    )
    assert cells() == ["ddp", "fsdp", "zero2"]
    assert cells("--backend", "ddp") == ["ddp"]
    assert cells("--backend", "ddp,zero2", "--exclude", "backend=ddp") == ["zero2"]
    assert cells("--select", "backend=fsdp", "--axis", "num_cams=1,2") == ["fsdp num_cams=1", "fsdp num_cams=2"]


def test_a_dry_run_of_many_cells_is_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = bench("run", ALL_EIGHT, "--dry-run", "--axis", "num_cams=1,2").output
    cells = re.findall(r"^\w+-\w+  .*batch per rank", output, re.MULTILINE)
    assert len(cells) == 15  # an include adds single once
    assert len(output.splitlines()) <= 16 + 6
    assert "--select 8 of them or fewer" in output
    assert "accelerate.yaml" in bench("run", ALL_EIGHT, "--dry-run").output


def test_a_search_takes_no_batch_of_the_file_for_its_own() -> None:
    output = bench("probe", ALL_EIGHT, "--dry-run").output
    assert output.count("  batch per rank ") == output.count("  batch per rank probe\n") == 8
    assert "\nbench probe searches every cell and ignores the batches of the matrix" in output


def test_a_global_batch_is_an_axis_and_what_does_not_divide_it_is_said(tmp_path: Path) -> None:
    options = ("--axis", "global_batch=16", "--axis", "backend=ddp", "--dry-run", "--out", str(tmp_path / "run"))
    listed = bench("run", QUICKSTART, *options, "--axis", "batch=1,3,4")
    assert listed.exit_code == 0, listed.output
    assert "left out: batch 3, which does not divide the 8 samples of a rank (16 / 2 ranks)\n" in listed.stdout
    assert "batch per rank 1, 4\n" in listed.stdout
    searched = bench("run", QUICKSTART, *options, "--axis", "batch=probe")
    assert ", headroom 90.0 %, divisors of 8 up to 8\n" in searched.stdout
    twice = bench("run", QUICKSTART, *options, "train.accumulate=2")
    assert twice.exit_code == 2
    assert "16 cannot be used with train.accumulate" in twice.stderr


@pytest.mark.parametrize("steps", ["2", "04", ""])
@pytest.mark.parametrize(
    "command", [("run", QUICKSTART), ("probe", "--backend", "ddp"), ("run", QUICKSTART, "--dry-run")]
)
def test_accumulation_through_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: str, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
    done = bench(*command, "--out", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert f"bench: environment: ACCELERATE_GRADIENT_ACCUMULATION_STEPS: {steps!r}" in done.stderr
    assert "set train.accumulate" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = bench("run", QUICKSTART, "--out", str(tmp_path / "file" / "run"))
    assert done.exit_code == 2
    assert "cannot write there" in done.stderr


def test_selected_batches_of_a_searched_cell_are_advised_on_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is launched: all that is asked for is stored. The search's answer, batch 2, is not asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nmatrix: {backend: [ddp], batch: [1, probe]}\nworkload: {name: toy_workloads:Toy, preset: tiny}\n"
        + OF_EXAMPLES
    )
    matrix, [plan], hardware, _ = selection.read(file)
    cell, store = plan.cell, Store(tmp_path / "run")
    record = machine.record(hardware)
    answer = Answer(batch=2, samples_per_s=20, held=0.5, confirmed=True)
    found = Verdict(
        max_batch_per_rank=2,
        certificate="cap_fits",
        fits=2,
        fails=None,
        best=answer,
        safe=answer,
        points=2,
        thrashing=(),
        why="2 fits",
    )
    with store.open(record, [cell], file.read_text(), plan=run_plan(matrix, [plan])):
        for batch in (1, 2):
            outcome = ok(*((0.1,) * cell.measure.steps,) * 2, memory=rss(4.0))
            measured = result(outcome, machine=record)
            attempt = Attempt(cell=cell, batch_per_rank=batch)
            store.finish(measured.model_copy(update={"attempt": attempt, "axes": plan.axes}))
        store.finish_probe(Probe(cell=cell, axes=plan.axes, goal=Goal(max_batch=2), found=found))
    done = bench("run", str(file), "--out", str(store.root), "--select", "batch=1")
    assert done.exit_code == 0, done.output
    assert "Train with ddp, batch 1:" in done.output
    assert "no batch to recommend" not in done.output


def test_a_report_that_cannot_be_written_hides_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched: the only attempt is stored already."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file, run = tmp_path / "mine.yaml", tmp_path / "run"
    file.write_text(
        "name: mine\nmatrix: {backend: [ddp], batch: 1}\nworkload: {name: toy_workloads:Toy, preset: tiny}\n"
        + OF_EXAMPLES
    )
    matrix, [plan], hardware, _ = selection.read(file)
    store, record = Store(run), machine.record(hardware)
    with store.open(record, [plan.cell], file.read_text(), plan=run_plan(matrix, [plan])):
        outcome = ok(*((0.1,) * plan.cell.measure.steps,) * 2, memory=rss(4.0))
        attempt = Attempt(cell=plan.cell, batch_per_rank=1)
        store.begin(attempt)
        store.finish(result(outcome, machine=record).model_copy(update={"attempt": attempt, "axes": plan.axes}))
    (run / "claims.yaml").write_text("{")
    done = bench("run", str(file), "--out", str(run))
    assert "the report cannot be written: " in done.stderr
    assert f"results: {run}" in done.stdout
    assert done.exit_code == 0


def test_a_run_without_time_to_launch_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file, store = tmp_path / "m.yaml", Store(tmp_path / "run")
    file.write_text(
        "workload: {name: toy_workloads:Toy, preset: tiny}\nmatrix: {backend: [ddp, zero2], batch: 1}\n" + OF_EXAMPLES
    )
    matrix, plans, hardware, _ = selection.read(file)
    record = machine.record(hardware)
    with store.open(record, [plan.cell for plan in plans], file.read_text(), plan=run_plan(matrix, plans)):
        for plan in plans:
            outcome = ok(*((0.1,) * plan.cell.measure.steps,) * 2, backend=plan.cell.backend, memory=rss(4.0))
            attempt = Attempt(cell=plan.cell, batch_per_rank=1)
            changes = {"attempt": attempt, "axes": plan.axes, "wall_s": 100.0}
            store.finish(result(outcome, machine=record).model_copy(update=changes))
    done = bench("run", str(file), "--out", str(store.root))
    assert (
        "nothing is launched again: that takes longer than a quarter of this run (--budget 2m allows it)" in done.output
    )
    assert "too close to call" in done.stdout


def test_a_dry_run_shows_how_often_each_attempt_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    once, often = bench("run", QUICKSTART, "--dry-run"), bench("run", QUICKSTART, "--dry-run", "measure.launches=5")
    ids = re.findall(r"^(\w+-\w+)  .+  batch per rank 1, 2$", once.output, re.MULTILINE)
    assert len(ids) == 4
    assert re.findall(r"^(\w+-\w+)  .+  batch per rank 1, 2  5 launches each$", often.output, re.MULTILINE) == ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--until", "0"], "--until: '0' is out of range\n  allowed: 0.01% or more, and below 100%: 2%"),
        (["--until", "100%"], "--until: '100%' is out of range"),
        (["--until", "abc"], "--until: 'abc' is not a percentage or a fraction\n  allowed: 5% or 0.05"),
        (["--until", "2"], "--until: '2' is not a percentage or a fraction\n  allowed: 5% or 0.05"),
        (["--until", "nan"], "--until: 'nan' is not a percentage or a fraction"),
        (["--until", "2%", "--budget", "soon"], "--budget: 'soon' is not a time\n  allowed: 90s, 20m or 2h, above 0"),
        (["--until", "2%", "--budget", "0"], "--budget: '0' is not a time"),
        (["--until", "2%", "--budget", "-5m"], "--budget: '-5m' is not a time"),
        (["--until", "2%", "--budget", "5 d"], "--budget: '5 d' is not a time"),
        (
            ["--budget", "5m", "measure.launches=1"],
            "--budget: has no effect without --until or measure.launches=auto\n  add --until 2%",
        ),
        (["--settle", "2%", "measure.launches=1"], "--settle: has no effect without measure.launches=auto"),
        (["--settle", "2"], "--settle: '2' is not a percentage or a fraction\n  allowed: 5% or 0.05"),
        (["--settle", "2%", "--until", "2%"], "--settle: cannot be combined with --until"),
        (["measure.launches=0"], "measure.launches=0: measure.launches: 0 cannot be used\n  allowed: at least 1"),
        (["measure.launches=x"], "measure.launches=x: measure.launches: 'x' cannot be used\n  allowed: a whole number"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_a_launch(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = bench("run", QUICKSTART, "--out", str(tmp_path / "run"), *options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"bench: {message}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "value_s"), [("90s", 90), ("20m", 1200), ("20 min", 1200), ("1.5h", 5400), ("2h", 7200)]
)
def test_a_time_is_read_with_its_unit(text: str, value_s: float) -> None:
    assert quantities.seconds("--budget", text) == value_s


def test_a_time_without_a_unit_is_refused() -> None:
    with pytest.raises(InputError, match=r"'20' is not a time[\s\S]*20m"):
        quantities.seconds("--budget", "20")


def test_what_the_host_cannot_hold_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    options = ["--backend", "ddp", "workload.preset=pi07", "launch.num_processes=800"]
    done = bench("probe", *options, "--out", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert re.search(r"Their weights take 800 × 2\d\.\d GiB = [\d.,]+ [GT]iB, and this machine has ", done.stderr)
    assert "--force to try it" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_dry_run_shows_what_gpus_would_run(driver: Driver) -> None:
    done = bench("run", QUICKSTART, "--dry-run", "--axis", "backend=ddp")
    assert done.exit_code == 0, done.output
    assert "num_processes: 2" in done.output
    assert "PYTORCH_NVML_BASED_CUDA_CHECK=1" in done.output
    assert "DS_ACCELERATOR=cpu" not in done.output


def test_a_dry_run_refuses_a_gpu_that_is_split(driver: Driver) -> None:
    driver.reports("uuid=GPU-a mib=81920 mig=1")
    done = bench("run", QUICKSTART, "--dry-run")
    assert done.exit_code == 2
    assert "GPU 0 is split into slices (MIG)" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--until", "2%"], "--best: cannot be combined with --until\n  leave out --until"),
        (["--rerun", "all"], "--best: cannot be combined with --rerun\n  leave out --rerun"),
        (["--launcher", "slurm", "--jobs", "2"], "--best: cannot be combined with --jobs: one job must measure all"),
        (["--settle", "0"], "--settle: '0' is out of range"),
    ],
)
def test_what_does_not_go_with_best_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    done = bench("run", QUICKSTART, "--best", "--out", str(tmp_path / "run"), *options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"bench: {message}")
    assert not (tmp_path / "run").exists()
