"""A plain training loop with accelerate, as a user has one: it knows nothing of bench."""

import argparse
import json
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
for name in ("--batch", "--width", "--warmup", "--steps"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
args = parser.parse_args()

accelerator = Accelerator()
model = torch.nn.Sequential(*(torch.nn.Linear(args.width, args.width) for _ in range(4)))
whole = sum(parameter.numel() for parameter in model.parameters())
steps = args.warmup + args.steps
x = torch.randn(args.batch * accelerator.num_processes, args.width).repeat(steps, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=args.batch)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
times_s = []
for (x,) in loader:
    began_s = time.perf_counter()
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    accelerator.wait_for_everyone()
    times_s.append(time.perf_counter() - began_s)
held = sum(parameter.numel() for parameter in model.parameters())
print(f"ran as {accelerator.distributed_type}, holds {held / whole:.0%} of the parameters", flush=True)
if accelerator.is_main_process:
    mean_s = sum(times_s[args.warmup :]) / args.steps
    with open(args.out, "w") as file:
        json.dump({"step": {"mean_s": mean_s}, "world": accelerator.num_processes}, file)
accelerator.end_training()
