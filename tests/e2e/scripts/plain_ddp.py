"""DistributedDataParallel in a plain loop, as torchrun starts it; the options plant what a script may get wrong."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--style", default="plain")
args = parser.parse_args()
style = args.style

if style == "sigterm":
    signal.signal(signal.SIGTERM, lambda *_: None)
if style == "thread":
    threading.Thread(target=lambda: [time.sleep(1) for _ in range(10_000)]).start()
if style == "forks":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"], start_new_session=True)

dist.init_process_group("gloo")
torch.manual_seed(0)
wide = 20_000_000 if style == "oom" and args.batch > 4 else 256
layers = (torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
others = [torch.nn.Parameter(torch.ones(4))] if style == "two optimizers" else []
optimizers = [torch.optim.AdamW(model.parameters()), *(torch.optim.SGD([one], lr=0.1) for one in others)]
fused = {}
if style == "fused":
    fused = {one: torch.optim.SGD([one], lr=1e-3) for one in model.parameters()}
    for parameter in fused:
        parameter.register_post_accumulate_grad_hook(lambda one: fused[one].step())
scaler = torch.amp.GradScaler("cpu", enabled=style == "scaler", init_scale=2.0)

batch = 3 if style == "ignores" else args.batch
length = 2 * (batch * 3 + 1) if style == "uneven" else 40 * batch
data = TensorDataset(torch.randn(length, 256))
workers = {"num_workers": 2, "persistent_workers": True} if style == "forks" else {}
loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), **workers)
every = {"accumulates": 4, "every second": 2}.get(style, 1)


def batches():
    for epoch in range(1_000_000):
        loader.sampler.set_epoch(epoch)
        yield from loader


began_s = time.perf_counter()
for step, (x,) in enumerate(batches()):
    if style == "hangs" and step == 5 and dist.get_rank() == 1:
        time.sleep(10_000)
    if style == "oom" and args.batch > 4 and step == 4:
        torch.empty(2**50)
    if style == "raises" and step == 4 and dist.get_rank() == 1:
        raise ValueError("no such sample")
    if style == "dies" and step == 4 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if style == "late" and dist.get_rank() == 1:
        time.sleep(0.3)
    loss = model(x).square().mean() + sum(one.sum() for one in others)
    if style == "scaler" and step % 5 == 4:
        loss = loss * float("inf")
    scaler.scale(loss / every).backward()
    if (step + 1) % every == 0 and not fused:
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    if fused:
        model.zero_grad()
    if style == "short" and step == 5:
        break
    if style == "prints" and step % 20 == 19:
        print(f"{20 * batch * 2 / (time.perf_counter() - began_s):.3f} samples/s", flush=True)
        began_s = time.perf_counter()
Path("checkpoint.pt").write_text("trained")
dist.destroy_process_group()
