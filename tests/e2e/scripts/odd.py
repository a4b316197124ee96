"""Steps that look unusual from outside. It trains by hand, without a wrapper."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--style", default="views")
parser.add_argument("--port", type=int)
args = parser.parse_args()


def main(rank, world_size):
    if args.style == "tensor":  # and no module
        weights = [torch.randn(64, 64, requires_grad=True)]
    else:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        model = torch.jit.script(model) if args.style == "scripted" else model
        weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, 0.01)
    if args.style == "spawned":  # a step before this process is told its rank
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{args.port}", rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo")
    pairs = torch.utils.data.TensorDataset(torch.randn(100_000, 64), torch.randn(100_000, 64))
    for number, (x, y) in enumerate(torch.utils.data.DataLoader(pairs, args.batch_size)):
        found = x @ weights[0] if args.style == "tensor" else model(x)
        if args.style == "views":  # two calls for each sample, and two batches a step
            found = found - model(y)
        found.square().mean().backward()
        if args.style == "views" and number % 2 == 0:
            continue
        for weight in weights:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        if args.style != "central" or dist.get_rank() == 0:
            optimizer.step()
        if args.style == "central":
            for weight in weights:
                dist.broadcast(weight.data, 0)
        optimizer.zero_grad()


if __name__ == "__main__":
    if args.style == "spawned":
        torch.multiprocessing.spawn(main, (2,), 2)
    else:
        main(None, None)
