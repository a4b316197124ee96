"""Whether observing a script disturbs it, and whether its steps are measured as the script would measure them itself.

Scripts of three kinds print the time of each of their steps. Each is run with the hook and without it, in turn. Within
a run with the hook, its mean step is compared with the one that the script printed of the same steps; between the two
runs of a round, what the script printed, and the peak of resident memory. On a busy machine, the ratio of two runs says
little: `own` is the time inside the functions of the hook in a measured step, by its share of the step.

glibc moves the size from which it maps an allocation with the sizes that are freed, and the peak of one and the same
script then differs by 4 % between its runs. Here the size is fixed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bench.records.rank_outcome import RankOk
from bench.store.spool import read_ranks

WARMUP, STEPS = 5, 40
STARTUP = Path(__file__).parents[2] / "bench" / "observe" / "startup"
KINDS = ("few large layers", "many small layers", "accelerate")


class Own:
    """Counts the time inside the functions that the hook calls in each step."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0
        observer, model = (sys.modules.get(f"_bench.observe.{name}") for name in ("observer", "model"))
        if observer and model:
            for owner, names in ((observer.Observer, ("enter", "leave", "loaded")), (model.WatchedModel, ("_called",))):
                for name in names:
                    setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                self.seconds += 0 if self._depth else time.perf_counter() - start_s

        return timed


def train(kind: str) -> None:
    """A script: it knows nothing of bench."""
    import torch

    own = Own()

    torch.manual_seed(0)
    if kind == "many small layers":
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        model: torch.nn.Module = torch.nn.TransformerEncoder(layer, 8)
        samples = torch.randn(64 * 16, 16, 128)
    else:
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
        samples = torch.randn(64 * 16, 1024)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=16)
    backward = torch.Tensor.backward
    if kind == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward = accelerator.backward
    ended_s = time.perf_counter()
    for (x,), _ in zip(loader, range(WARMUP + STEPS + 1), strict=False):
        backward(model(x).square().mean())  # type: ignore[no-untyped-call]
        optimizer.step()
        now_s = time.perf_counter()
        print(now_s - ended_s, own.seconds, flush=True)
        ended_s = now_s
        optimizer.zero_grad()
    print(
        "peak", next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    )


class Run(NamedTuple):
    """One run of a script."""

    printed_s: float
    """The mean of its measured steps, as it printed them."""
    own_s: float
    """Of these steps, inside the hook."""
    peak_kib: int | None
    observed: RankOk | None


def run(kind: str, *, observes: bool) -> Run:
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    with tempfile.TemporaryDirectory() as folder:
        if observes:
            settings = {"folder": folder, "warmup_steps": WARMUP, "steps": STEPS, "capacity_bytes": 2**30}
            environment["PYTHONPATH"] = f"{STARTUP}:{environment.get('PYTHONPATH', '')}"
            environment["BENCH_OBSERVE"] = json.dumps(settings)
        command = [sys.executable, __file__, "--train", kind]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        lines = done.stdout.splitlines()
        times_s, own_s = zip(*(map(float, line.split()) for line in lines if not line.startswith("peak")), strict=True)
        peaks = [int(line.split()[1]) for line in lines if line.startswith("peak")]
        ranks = read_ranks(Path(folder), 1)
        observed = next((rank for rank in ranks if isinstance(rank, RankOk)), None)
    # The hook ends the process within its last step, which the script then does not print.
    mine_s = median(after - before for before, after in pairwise(own_s[WARMUP : WARMUP + STEPS - 1]))
    return Run(fmean(times_s[WARMUP : WARMUP + STEPS - 1]), mine_s, next(iter(peaks), None), observed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    if given.train:
        train(given.train)
        return
    print(f"{'script':20} hook / printed   with / without hook   own per step       peak with / without")
    for kind in KINDS:
        apart, cost, memory, own_s, own = [], [], [], [], []
        for number in range(given.rounds):
            order = (True, False) if number % 2 else (False, True)
            runs = {observes: run(kind, observes=observes) for observes in order}
            observed, plain = runs[True].observed, runs[False]
            assert observed is not None
            assert observed.memory.peak_rss_bytes is not None
            assert plain.peak_kib is not None
            apart.append(fmean(observed.step_times_s[: STEPS - 1]) / runs[True].printed_s)
            own_s.append(runs[True].own_s)
            own.append(runs[True].own_s / runs[True].printed_s)
            cost.append(runs[True].printed_s / plain.printed_s)
            memory.append(observed.memory.peak_rss_bytes / 1024 / plain.peak_kib)
        spread = f"({min(cost):.3f} to {max(cost):.3f})"
        of_hook = f"{1e6 * median(own_s):.0f} us, {median(own):.2%}"
        of_runs = f"{median(apart):.4f}           {median(cost):.4f} {spread}"
        print(f"{kind:20} {of_runs}   {of_hook:15}    {median(memory):.4f}", flush=True)


if __name__ == "__main__":
    main()
