"""The loop that a user would write on accelerate, without instruments, step by step in turn with bench's own.

The same clock times both, each with the wait for the device at its end: the marks of a device leave out the host's
work before the first kernel.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from bench.observe.beats import BeatFile
from bench.records.cell import Attempt
from bench.records.phases import Stage
from bench.runner.device import DEVICE_ADAPTERS
from bench.runner.forward import METRICS
from bench.runner.setup import set_up
from bench.runner.steps import throughput_window
from bench.store import spool

folder = Path(sys.argv[1])
spec = spool.read(folder / "spec.json", spool.Spec)
assert spec is not None
assert isinstance(spec.attempt, Attempt)
device = DEVICE_ADAPTERS[spec.device]()
job = set_up(spec.attempt.cell, device, spec.attempt.batch_per_rank)
batches = iter(job.loader(spec.attempt.batch_per_rank))
measure = spec.attempt.cell.measure
beat = BeatFile(folder, int(os.environ.get("RANK", "0")))
bare_s: list[float] = []
bench_s: list[float] = []
throughput_window(job, batches, measure.warmup_steps, device, beat, Stage.WARMUP)
for index in range(8 * measure.steps):
    # In turn, and the turn swapped every other time: what disturbs the machine disturbs both alike.
    if index % 4 in (0, 3):
        start = time.perf_counter()
        throughput_window(job, batches, 1, device, beat, Stage.MEASURE)
        bench_s.append(time.perf_counter() - start)
        continue
    start = time.perf_counter()
    output = job.model(next(batches))
    job.accelerator.backward(output["loss"])
    job.clip()
    job.optimizer.step()
    job.optimizer.zero_grad()
    job.scheduler.step()
    losses = torch.stack([output.get(name, torch.zeros(())).detach().float() for name in METRICS])
    job.accelerator.gather(losses[None]).mean(dim=0).tolist()
    bare_s.append(time.perf_counter() - start)
(folder / f"bare{os.environ.get('RANK', '0')}.json").write_text(json.dumps([bench_s, bare_s]))
os._exit(0)
