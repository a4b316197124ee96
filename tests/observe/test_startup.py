"""The start-up hook in a Python process: what it hides, what it imports, and what it leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.observe.files import RankFiles
from bench.records.rank_outcome import RankOk
from bench.store.spool import read_ranks

STARTUP = Path(bench.__file__).parent / "observe" / "startup"
TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
{more}
for _ in range({steps}):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("end")
"""
ADAMW = "optimizer = torch.optim.AdamW(model.parameters())"


def ended(
    code: str, folder: Path, *, observes: bool = True, path: str = "", **changes: int
) -> "subprocess.CompletedProcess[str]":
    settings = {"folder": str(folder), "warmup_steps": 1, "steps": 4, "capacity_bytes": 2**30, **changes}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(STARTUP), path])}
    environment |= {"BENCH_OBSERVE": json.dumps(settings)} if observes else {}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def run(code: str, folder: Path, **given: Any) -> str:
    done = ended(code, folder, **given)
    assert done.returncode == 0, done.stderr
    assert "cannot observe" not in done.stderr, done.stderr
    return done.stdout


def measured(code: str, folder: Path, **given: Any) -> RankOk:
    run(code, folder, **given)
    [rank] = read_ranks(folder, 1)
    assert isinstance(rank, RankOk), rank
    return rank


def test_nothing_is_imported_until_torch_is(tmp_path: Path) -> None:
    code = "import sys; print(*sys.modules)"
    plain = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    more = {*run(code, tmp_path).split()} - {*plain.stdout.split()}
    assert more <= {"sitecustomize", "importlib.machinery", "importlib._bootstrap"}


def test_a_sitecustomize_of_the_users_own_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'mine'")
    code = "import sys, sitecustomize; print(mine, sitecustomize.__file__)"
    assert run(code, tmp_path, path=str(tmp_path)) == f"mine {tmp_path / 'sitecustomize.py'}\n"


def test_a_script_may_have_a_bench_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text("mine = True")
    measured("import bench; assert bench.mine" + TRAIN.format(more=ADAMW, steps=20), tmp_path)


def test_the_measured_window_is_written_and_ends_the_process(tmp_path: Path) -> None:
    assert run(TRAIN.format(more=ADAMW, steps=20), tmp_path) == ""
    (rank,) = read_ranks(tmp_path, 1)
    assert len(rank.step_times_s) == 4
    assert (rank.observed.samples, rank.observed.forwards, rank.observed.optimizer) == (12, 4, "AdamW")
    assert (rank.regime.parameters, rank.regime.masters_dtype, rank.regime.adam) == (20, "float32", rank.regime.adam)
    assert rank.regime.matmul_shares == {"float32": 1.0}
    assert rank.memory.peak_rss_bytes


@pytest.mark.parametrize(
    ("more", "optimizers"),
    [
        ("optimizer = torch.optim.AdamW(model.parameters()); optimizer.step = torch.compile(optimizer.step)", 1),
        ("model = torch.compile(model, backend='eager')\n" + ADAMW, 1),
        ("model.compile(backend='eager')\n" + ADAMW, 1),
        ("each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}\n"
         "for p in each: p.register_post_accumulate_grad_hook(lambda p: each[p].step())\n"
         "class optimizer: step = zero_grad = lambda: None", 2),
    ],
    ids=["compiled optimizer", "compiled model", "compiled in place", "fused into backward"],
)  # fmt: skip
def test_steps_are_seen_however_they_are_made(more: str, optimizers: int, tmp_path: Path) -> None:
    rank = measured(TRAIN.format(more=more, steps=20), tmp_path, phase_steps=2)
    assert rank.phase_times_s.keys() >= {"bwd", "optim_step", "rest"}
    assert rank.n_phase_steps == 2
    assert rank.observed.optimizers == optimizers
    assert rank.observed.samples in (12, None)


def test_every_process_that_trains_as_a_rank_is_counted_once(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, 0)
    files.trains()
    files.trains()
    assert files.trainers == 1
    if not (child := os.fork()):
        files.trains()
        os._exit(0)
    os.waitpid(child, 0)
    assert files.trainers == 2


def test_a_script_that_ends_too_early_says_after_which_step(tmp_path: Path) -> None:
    assert run(TRAIN.format(more=ADAMW, steps=5), tmp_path) == "end\n"
    assert json.loads((tmp_path / "rank0.early").read_text()) == {"steps": 5, "warmup": 3, "restarts": 0}
    assert read_ranks(tmp_path, 1) == []


@pytest.mark.parametrize("steps", [10, 20])
def test_a_script_may_end_in_its_phases(steps: int, tmp_path: Path) -> None:
    assert run(TRAIN.format(more=ADAMW, steps=steps), tmp_path, phase_steps=5) == ("end\n" if steps == 10 else "")
    (rank,) = read_ranks(tmp_path, 1)
    assert (len(rank.step_times_s), rank.n_phase_steps) == (4, 0 if steps == 10 else 5)
    assert set(rank.phase_times_s) == (set() if steps == 10 else {"forward", "bwd", "optim_step", "rest", "total"})


THREAD = """
import threading
def train():
    for step in range({steps}):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    raise ValueError("no such sample")
def log(): raise OSError("no such host")
for target in {targets}:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
"""


def test_an_error_in_the_thread_that_trains_is_the_rank_s(tmp_path: Path) -> None:
    model = "import torch; model = torch.nn.Linear(4, 4); " + ADAMW
    run(model + THREAD.format(steps=5, targets="[train]"), tmp_path)
    (rank,) = read_ranks(tmp_path, 1)
    assert (rank.error, rank.phase) == ("ValueError: no such sample", "measure")
    assert "in train" in rank.traceback


def test_an_error_in_another_thread_is_not(tmp_path: Path) -> None:
    model = "import torch; model = torch.nn.Linear(4, 4); " + ADAMW
    measured(model + THREAD.format(steps=20, targets="[log, train]"), tmp_path)


def test_a_process_that_trains_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert run("import torch; print(torch.ones(1).item())", tmp_path) == "1.0\n"
    assert list(tmp_path.iterdir()) == []


def test_steps_that_a_fused_optimizer_skips_are_counted(tmp_path: Path) -> None:
    """torch's scaler calls it at each step, and it finds out itself that gradients overflowed."""
    code = """
import torch
model = torch.nn.Linear(4, 4)
optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cpu", 1.0)
for step in range(9):
    scale = float("inf") if step in (4, 5) else 1.0
    scaler.scale(model(torch.ones(3, 4)).sum() * scale).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    assert measured(code, tmp_path).observed.skipped_steps == 2


PARTS = """
import torch
model = torch.nn.ModuleDict({{"used": torch.nn.Linear(4, 4), "aux": torch.nn.Linear(100, 4)}})
optimizer = torch.optim.{optimizer}
def loss():
    optimizer.zero_grad()
    found = model["used"](torch.ones(3, 4)).sum()
    found.backward()
    return found
for step in range(9):
    {step}
"""


def test_what_gets_no_gradient_is_counted(tmp_path: Path) -> None:
    plain = "SGD(model.parameters(), 0.1)"
    aux = (404, ("aux.weight", "aux.bias"))
    cases = {
        (plain, "loss(); optimizer.step()"): aux,
        (plain, "optimizer.step(loss)"): aux,  # gradients come within the step
        ("SGD(model['used'].parameters(), 0.1)", "loss(); optimizer.step()"): (0, ()),
        (plain, "optimizer.step()"): (424, ("aux.weight", "used.weight", "used.bias")),
    }
    for number, ((optimizer, step), expected) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = measured(PARTS.format(optimizer=optimizer, step=step), folder).coverage
        assert (found.without_gradient, found.without_gradient_names) == expected


def test_all_models_that_are_trained_count(tmp_path: Path) -> None:
    """Also a loss that holds one of them, whose parameters count once."""
    code = """
import torch
made, judged = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.made, self.scale = made, torch.nn.Parameter(torch.ones(3))
criterion = Loss()
wrapped = torch.nn.Sequential(made)
optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (criterion, judged)]
for step in range(9):
    (judged(wrapped(torch.ones(3, 4))).sum() * criterion.scale.sum()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
    rank = measured(code, tmp_path)
    assert (rank.regime.parameters, rank.coverage.without_gradient) == (20 + 5 + 3, 0)


def test_a_step_that_calls_the_one_of_its_super_class_is_one_step(tmp_path: Path) -> None:
    """torch hooks both, once a plain AdamW was made."""
    own = """
class Own(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)
torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())
optimizer = Own(model.parameters())
"""
    rank = measured(TRAIN.format(more=own, steps=9), tmp_path)
    assert (rank.observed.forwards, len(rank.step_times_s)) == (4, 4)


def test_an_optimizer_that_raised_hides_no_later_one(tmp_path: Path) -> None:
    """As where a script looks for a batch that fits."""
    raising = """
class Full(torch.optim.SGD):
    def step(self, closure=None):
        raise MemoryError
try:
    Full(model.parameters(), lr=1.0).step()
except MemoryError:
    pass
"""
    measured(TRAIN.format(more=raising + ADAMW, steps=9), tmp_path)


@pytest.mark.parametrize("phase_steps", [0, 30])
def test_a_model_can_be_saved_and_copied_while_it_is_watched(tmp_path: Path, phase_steps: int) -> None:
    code = """
import copy, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range({steps}):
    if {steps} - 3 < step:
        torch.save(model, "model.pt")
        copy.deepcopy(model)(torch.ones(3, 4))
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    run(code.format(steps=20 if phase_steps else 6), tmp_path, phase_steps=phase_steps)
    load = "import torch; print(torch.load('model.pt', weights_only=False)(torch.ones(3, 4)).shape)"
    assert run(load, tmp_path, observes=False) == "torch.Size([3, 4])\n"


def test_what_bench_did_not_expect_of_a_model_ends_no_script(tmp_path: Path) -> None:
    """Parameters without a size, nested tensors, and an optimizer that keeps state of all parameters together."""
    odd = """
model.spare = torch.nn.LazyLinear(3)
model.register_forward_pre_hook(lambda *_: None)
plain = model.forward
model.forward = lambda x: plain(torch.ones(3, 4))
def model_of(x, call=model.__call__):
    return call(torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)]))
optimizer = torch.optim.AdamW([model.weight, model.bias])
optimizer.state["global"] = {"n": 1}
"""
    code = TRAIN.format(more=odd, steps=9).replace("    model(torch.ones(3, 4))", "    model_of(1)")
    rank = measured(code, tmp_path)
    assert rank.regime.optimizer_dtype == "float32"
    assert rank.observed.samples == 8


def test_an_end_in_the_phase_steps_leaves_what_was_measured(tmp_path: Path) -> None:
    code = """
import torch
model, data = torch.nn.Linear(4, 4), iter(range(10))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    next(data)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""
    assert "StopIteration" in ended(code, tmp_path, phase_steps=30).stderr
    [rank] = read_ranks(tmp_path, 1)
    assert isinstance(rank, RankOk)


def test_a_model_that_the_script_is_done_with_is_freed(tmp_path: Path) -> None:
    code = """
import gc, torch, weakref
for epoch in range(2):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    known = weakref.ref(model)
    del model, optimizer
    gc.collect()
    print(known())
    break
"""
    assert run(code, tmp_path) == "None\n"


def test_a_forward_of_an_export_does_not_count(tmp_path: Path) -> None:
    loop = "    model(torch.ones(3, 4))"
    code = TRAIN.format(more=ADAMW, steps=9).replace(loop, "    torch.jit.trace(model, torch.ones(1, 4))\n" + loop)
    rank = measured(code, tmp_path)
    assert (rank.observed.forwards, rank.observed.samples) == (4, 12)


def test_an_error_with_the_name_of_a_file_that_is_no_text_is_kept(tmp_path: Path) -> None:
    code = TRAIN.format(more=ADAMW, steps=5) + "raise ValueError('cannot read \\udcfc.bin')"
    ended(code, tmp_path, steps=40)
    [rank] = read_ranks(tmp_path, 1)
    assert rank.error == "ValueError: cannot read \\udcfc.bin"
