"""Trains `rotary` in a plain loop of accelerate, and prints what it held and the losses."""

import json
import os
import sys

import torch
from accelerate import Accelerator, PartialState
from rotary import rotary
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import DataLoader

PartialState(cpu=True)
accelerator = Accelerator()
torch.manual_seed(1000)
model, _, loss_of = rotary()
torch.manual_seed(1000)
loader = DataLoader(rotary()[1], batch_size=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
reduced, losses = set(), []


def hook(state, bucket):  # type: ignore[no-untyped-def]
    reduced.add(str(bucket.buffer().dtype))
    return allreduce_hook(state, bucket)


model.register_comm_hook(None, hook)
for _, (x, y) in zip(range(int(sys.argv[1])), loader, strict=False):
    loss = loss_of(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.gather(loss.detach()).mean().item())
dtypes = {
    "weights_dtype": {str(weight.dtype) for weight in model.parameters()},
    "optimizer_dtype": {str(state["exp_avg"].dtype) for state in optimizer.state.values()},
    "reduction_dtype": reduced,
}
if accelerator.is_main_process:
    print(json.dumps({"losses": losses, **{name: found.pop() for name, found in dtypes.items()}}))
sys.stdout.flush()
os._exit(0)  # gloo's threads outlive `end_training` under DDP, and may abort the process as Python ends
