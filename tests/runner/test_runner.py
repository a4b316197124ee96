"""One rank in this process: what counts as out of memory, and that timing a step does not change what it computes."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from examples import cell
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from bench.backends import expected_regime
from bench.errors import InputError
from bench.launch import attempt_files
from bench.machine.energy import Counter, Meter
from bench.model.workload import Pi07
from bench.observe.beats import BeatFile
from bench.processes import anyone_has_open
from bench.records.cell import Attempt, Train
from bench.records.phases import Stage
from bench.records.rank_outcome import Metered, RankOom
from bench.runner.attempt import Here, _measure, failure
from bench.runner.compiled import compile_as_requested
from bench.runner.device import Cpu
from bench.runner.forward import METRICS
from bench.runner.preload import _compiler_named, _wait_for_baton
from bench.runner.regime import check, observe
from bench.runner.server import launch_environment
from bench.runner.setup import Job, set_up
from bench.runner.steps import phase_window, settle, step, throughput_window, untimed

OPTIONS = Pi07.Config(preset="tiny", n_layers=1, num_cams=1, n_obs_history=1).model_dump(mode="json")
PHASES = ["dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather"]
STEPS, BATCH, SEED = 4, 2, 1000
CPU = Cpu()

Beats = list[tuple[str, int, int]]


def no_beat(_phase: str, _step: int, _steps: int) -> None: ...


# --- out of memory --------------------------------------------------------------------------------------------------


def test_memory_that_ran_out_is_recognized() -> None:
    """In one of many ways: see test_oom.py."""
    outcome = failure(MemoryError("no room\nat all"), 1, "warmup")
    assert (outcome.rank, outcome.phase, outcome.message) == (1, "warmup", "MemoryError: no room")


def test_a_message_about_memory_can_be_stored_whatever_it_holds() -> None:
    outcome = failure(MemoryError("no room for caf\udce9"), 0, "warmup")
    assert isinstance(outcome, RankOom)
    assert json.loads(outcome.model_dump_json())["message"] == "MemoryError: no room for caf\\udce9"


def test_anything_else_is_an_error_with_its_traceback() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) + torch.ones(3)
    outcome = failure(caught.value, 0, "forward")
    assert outcome.error == f"RuntimeError: {caught.value}"
    assert "test_anything_else_is_an_error" in outcome.traceback


def test_a_huge_message_is_cut_and_its_end_of_the_traceback_kept() -> None:
    outcome = failure(ValueError("x" * 50_000 + "the end"), 0, "forward")
    assert len(outcome.error) <= 2000
    assert len(outcome.traceback) <= 20_000
    assert outcome.traceback.rstrip().endswith("the end")


# --- the step -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()


def attempt(precision: str = "bf16", optimizer: str = "adamw") -> Attempt:
    train = Train(optimizer=optimizer, learning_rate=1e-3, weights="bf16")
    return Attempt(
        cell=cell("single", num_processes=1, mixed_precision=precision, options=OPTIONS, train=train),
        batch_per_rank=BATCH,
    )


def job_of(precision: str = "bf16", optimizer: str = "adamw") -> Job:
    AcceleratorState._reset_state(reset_partial_state=True)
    return set_up(attempt(precision, optimizer).cell, CPU, BATCH)


def batches_of(job: Job) -> Iterator[dict[str, Tensor]]:
    return iter(job.loader(BATCH))


def losses(rows: list[list[float]]) -> list[float]:
    return [row[METRICS.index("loss")] for row in rows]


def bare(precision: str) -> list[float]:
    """The same training written by hand with torch alone."""
    task = Pi07(Pi07.Config.model_validate(OPTIONS))
    torch.manual_seed(SEED)
    model = task.build()
    if precision == "bf16":
        model = model.bfloat16()
    model.train()
    low = [parameter for parameter in model.parameters() if parameter.requires_grad]
    high = [parameter.detach().clone().float().requires_grad_() for parameter in low]
    optimizer = AdamW(high, lr=1e-3, weight_decay=0.01)
    series = []
    for _, batch in zip(range(STEPS), DataLoader(task.dataset(SEED), batch_size=BATCH), strict=False):
        loss: Tensor = model(batch)["loss"]
        loss.backward()
        for copy, parameter in zip(high, low, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(high, 1.0)
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(high, low, strict=True):
                parameter.copy_(copy)
        series.append(loss.float().item())
    return series


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_measuring_does_not_change_the_computation(precision: str) -> None:
    job = job_of(precision)
    whole_steps = throughput_window(job, batches_of(job), STEPS, CPU, no_beat, Stage.MEASURE).metrics
    job = job_of(precision)
    phases = phase_window(job, batches_of(job), STEPS, CPU, no_beat).metrics
    job = job_of(precision)
    batches = batches_of(job)
    mixed = throughput_window(job, batches, 1, CPU, no_beat, Stage.MEASURE).metrics
    mixed += phase_window(job, batches, STEPS - 1, CPU, no_beat).metrics
    assert losses(whole_steps) == losses(phases) == losses(mixed) == bare(precision)
    assert all(a != b for a, b in pairwise(losses(whole_steps)))


def test_phases_are_timed_in_order_with_their_sums() -> None:
    job = job_of()
    seen: list[str] = []
    step(job, batches_of(job), seen.append)
    assert seen == PHASES
    beats: Beats = []
    window = phase_window(job, batches_of(job), 3, CPU, lambda *beat: beats.append(beat))
    assert beats == [("phases", 0, 3), ("phases", 1, 3), ("phases", 2, 3)]
    assert window.times_s == []
    times = window.phase_times_s
    assert list(times) == [*PHASES, "total", "backward_step"]
    for index in range(3):
        assert sum(times[phase][index] for phase in PHASES) <= times["total"][index]
        named = ("bwd", "unscale_clip", "optim_step", "zero_grad_sched")
        assert times["backward_step"][index] == pytest.approx(sum(times[phase][index] for phase in named))
    assert all(time > 0 for samples in times.values() for time in samples)


def test_each_phase_holds_its_own_work() -> None:
    job = job_of()
    low, high = job.masters.weights, job.masters.masters
    before = [weight.detach().clone() for weight in low]
    done: dict[str, tuple[bool, bool, bool]] = {}

    def begin_phase(phase: str) -> None:
        backward = any(weight.grad is not None for weight in low)
        clipped = any(master.grad is not None for master in high)
        stepped = any(not torch.equal(weight, old) for weight, old in zip(low, before, strict=True))
        done[phase] = (backward, clipped, stepped)

    step(job, batches_of(job), begin_phase)
    assert done == {  # before each
        "dataload_wait": (False, False, False),
        "forward": (False, False, False),
        "bwd": (False, False, False),
        "unscale_clip": (True, False, False),
        "optim_step": (True, True, False),
        "zero_grad_sched": (True, True, True),
        "sync_gather": (False, False, True),
    }


def test_no_phase_steps_leave_the_window_out() -> None:
    window = phase_window(job_of(), iter(()), 0, CPU, no_beat)
    assert (window.times_s, window.phase_times_s, window.metrics) == ([], {}, [])


def test_the_throughput_window_times_each_step_once() -> None:
    beats: Beats = []
    job = job_of()
    window = throughput_window(job, batches_of(job), 3, CPU, lambda *beat: beats.append(beat), Stage.WARMUP)
    assert beats == [("warmup", 0, 3), ("warmup", 1, 3), ("warmup", 2, 3)]
    assert len(window.times_s) == len(window.metrics) == 3
    assert window.phase_times_s == {}


def test_the_throughput_window_is_two_steps_ahead_of_the_device_and_moves_metrics_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    class Device(Cpu):
        def mark(self) -> float:
            done.append("mark")
            return float(len(done))

        def reach(self, mark: float) -> None:
            done.append(f"reach {mark}")

        def synchronize(self) -> None:
            done.append("synchronize")

    to_list = Tensor.tolist

    def tolist(tensor: Tensor) -> list[Any]:
        if tensor.shape[-1:] == (len(METRICS),):
            done.append("to the host")
        return to_list(tensor)

    job = job_of()
    monkeypatch.setattr(Tensor, "tolist", tolist)
    window = throughput_window(job, batches_of(job), 3, Device(), no_beat, Stage.MEASURE)
    first_ends = 2.0
    assert done == ["mark"] * 3 + [f"reach {first_ends}", "mark", "synchronize", "to the host"]
    assert window.times_s == [1.0, 1.0, 2.0]
    assert len(window.host_times_s) == 3
    assert all(0 < time_s < 600 for time_s in window.host_times_s)


def test_steps_sum_to_the_wall_time_of_the_window_with_all_that_lies_between_them() -> None:
    """Time between two steps, such as a slow disk under the beats, is time of the training."""
    planted_s = 0.05
    seen_s: list[float] = []

    class Device(Cpu):
        def mark(self) -> float:
            seen_s.append(super().mark())
            return seen_s[-1]

    job = job_of()
    window = throughput_window(job, batches_of(job), 4, Device(), lambda *_: time.sleep(planted_s), Stage.MEASURE)
    assert sum(window.times_s) == pytest.approx(seen_s[-1] - seen_s[0])
    assert sum(window.times_s) >= 3 * planted_s  # the first beat, as the rank enters the stage, is before the window
    assert sum(window.times_s) - sum(window.host_times_s) >= 3 * planted_s


def test_warm_up_goes_on_until_its_seconds_have_passed() -> None:
    job = job_of()
    batches, since_s = batches_of(job), time.perf_counter()
    warm = throughput_window(job, batches, 1, CPU, no_beat, Stage.WARMUP)
    assert settle(job, batches, since_s, warm, CPU, no_beat, 0.0) == warm
    until_s = time.perf_counter() - since_s + 0.5
    settled = settle(job, batches, since_s, warm, CPU, no_beat, until_s)
    assert time.perf_counter() - since_s >= until_s
    assert len(settled.metrics) > 1
    assert settled.metrics[:1] == warm.metrics


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_attempt_reads_the_energy_counter_around_its_window(tmp_path: Path, micro_batches: int) -> None:
    class Device(Cpu):
        def meters(self) -> Mapping[str, Meter]:
            joules = iter((7.0, 97.0))
            return {"joules": Meter(lambda: {"package-0": Counter(next(joules))}), "unread": Meter()}

    here = Here(0, Device(), tmp_path, BeatFile(tmp_path, 0))
    asked = attempt()
    train = asked.cell.train.model_copy(update={"accumulate": micro_batches})
    cell = asked.cell.model_copy(update={"train": train})
    asked = asked.model_copy(update={"cell": cell})
    found = _measure(asked, "cpu", job_of(), here, 0.0, contextlib.ExitStack())
    assert found.metered == Metered(amounts={"joules": 90}, samples=3 * micro_batches * BATCH)


def test_without_an_optimizer_only_forward_and_backward_run() -> None:
    job = job_of(optimizer="none")
    before = [parameter.detach().clone() for parameter in job.model.parameters()]
    gradients: list[bool] = []

    def begin_phase(phase: str) -> None:
        if phase in ("unscale_clip", "zero_grad_sched", "sync_gather"):
            gradients.append(any(parameter.grad is not None for parameter in job.model.parameters()))

    batches = batches_of(job)
    for _ in range(2):
        step(job, batches, begin_phase)
    assert gradients == [True, True, False] * 2
    assert (job.optimizer, job.scheduler, job.masters) == (None, None, None)
    assert all(torch.equal(a, b) for a, b in zip(before, job.model.parameters(), strict=True))


def test_a_metric_that_the_workload_lacks_is_zero() -> None:
    job = job_of()
    whole = step(job, batches_of(job), untimed)
    assert len(whole) == len(METRICS)
    assert all(value != 0 for value in (whole[METRICS.index("loss")], whole[METRICS.index("mse")]))
    model = job.model
    alone = dataclasses.replace(job, model=lambda batch: {"loss": model(batch)["loss"]})  # type: ignore[arg-type]
    loss, *rest = step(alone, batches_of(job), untimed)
    assert loss != 0
    assert rest == [0.0] * 4


# --- setting up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "weights", "wrapped"), [("bf16", "bfloat16", True), ("no", "float32", False)])
def test_the_regime_is_read_off_what_stepped(precision: str, weights: str, wrapped: bool) -> None:
    job = job_of(precision)
    assert (job.masters is not None) == wrapped
    step(job, batches_of(job), untimed)
    found = observe(job)
    check(attempt(precision).cell, "cpu", found)
    assert (found.weights_dtype, found.masters_dtype, found.optimizer_dtype) == (weights, "float32", "float32")
    assert found.parameters == sum(parameter.numel() for parameter in job.model.parameters())
    assert (found.sharding, found.sharded_parameters, found.reduction_dtype) == ("none", 0, None)


def test_adam_over_bf16_weights_would_be_seen() -> None:
    job = job_of()
    assert job.masters is not None
    adam = AdamW(job.model.parameters())
    without = dataclasses.replace(job, masters=None, optimizer=adam, scheduler=LambdaLR(adam, lambda _: 1.0))
    step(without, batches_of(job), untimed)
    with pytest.raises(RuntimeError, match=r"masters_dtype: requested float32, observed bfloat16.*optimizer_dtype"):
        check(attempt().cell, "cpu", observe(without))


def test_the_cell_says_how_often_gradients_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    job = job_of()
    assert job.micro_batches == job.accelerator.gradient_accumulation_steps == 1


def test_two_jobs_of_one_seed_are_the_same() -> None:
    first, second = (list(job_of().model.parameters()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_units_are_compiled_also_once_they_are_sharded(tmp_path: Path) -> None:
    """fully_shard changes their class."""
    model = Pi07(Pi07.Config.model_validate(OPTIONS)).build()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        units = [module for module in model.modules() if type(module).__name__ in Pi07.units]
        for unit in units:
            fully_shard(unit, mesh=init_device_mesh("cpu", (1,)))
        compile_as_requested(Train(compile="unit"), model, Pi07.units)
    finally:
        dist.destroy_process_group()
    compiled = [module for module in model.modules() if module._compiled_call_impl is not None]
    assert {id(module) for module in compiled} == {id(unit) for unit in units}


def test_a_model_is_compiled_as_a_whole_or_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    compile_as_requested(Train(), model, ("Linear",))
    assert [module for module in model.modules() if module._compiled_call_impl] == []
    compile_as_requested(Train(compile="model"), model, ("Linear",))
    assert [module for module in model.modules() if module._compiled_call_impl] == [model]


def test_units_that_are_not_there_are_not_compiled_in_silence() -> None:
    with pytest.raises(InputError, match="compile: unit has nothing to compile"):
        compile_as_requested(Train(compile="unit"), nn.Linear(1, 1), ())


def test_what_no_unit_shows_of_a_regime_is_not_checked() -> None:
    job = job_of()
    step(job, batches_of(job), untimed)
    found = observe(job)
    wanted = expected_regime(cell("fsdp2"), "cpu")
    assert wanted["reshard_after_forward"] is True
    with pytest.raises(RuntimeError) as error:
        check(cell("fsdp2"), "cpu", found)
    assert "sharding: requested fully_shard" in str(error.value)
    assert "reshard_after_forward" not in str(error.value)


@pytest.mark.parametrize("backend", ["ddp", "fsdp2", "zero3"])
def test_a_server_that_is_alone_gives_its_child_a_world_of_one(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate opens no process group without these, and measures something else than was asked for."""
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name in world:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    attempt = Attempt(cell=cell(backend, num_processes=1), batch_per_rank=1)
    for name, text in attempt_files.files(attempt, (), "cuda", {}, str(tmp_path)).items():
        (tmp_path / name).write_text(text)
    assert world.items() <= launch_environment(tmp_path / "accelerate.yaml", 1234).items()
    monkeypatch.setenv("RANK", "1")
    assert launch_environment(tmp_path / "accelerate.yaml", 1234)["RANK"] == "1"


def test_a_build_without_a_compiler_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ImportError, match="cpu_adam, and there is no no-such-compiler"), _compiler_named("cpu_adam"):
        raise RuntimeError("Error building extension")
    monkeypatch.setenv("CXX", sys.executable)  # another reason than that
    with pytest.raises(RuntimeError, match="Error building"), _compiler_named("cpu_adam"):
        raise RuntimeError("Error building extension")


def test_a_dead_build_of_an_extension_blocks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when the killed process has not let go of torch's lock file yet, and its kernel lock is free already."""
    baton = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"open({str(baton)!r}, 'w').write('1'); f = open({str(baton)!r}); import time; time.sleep(60)",
        ]
    )
    while not (baton.exists() and anyone_has_open(baton)):
        time.sleep(0.01)
    killer = threading.Timer(0.5, holder.kill)
    killer.start()
    _wait_for_baton(baton)
    killer.join()
    holder.wait()
    assert not baton.exists()
    assert capsys.readouterr().out == f"removed the lock {baton}: its process was killed, and no other has it open\n"
