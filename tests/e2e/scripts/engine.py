"""DeepSpeed's engine with ZeRO-2 and two micro-batches a step."""

import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
args = parser.parse_args()

deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
config = {
    "train_micro_batch_size_per_gpu": args.batch,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(10_000):
    loss = engine(torch.randn(args.batch, 128, dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
