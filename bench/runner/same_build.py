"""Whether all ranks built the same model. Other weights would train, but to another loss on each backend."""

import torch
from accelerate.utils import gather_object
from torch import nn

from bench.errors import WorkloadError
from bench.runner.weights import Undrawn

FEW = 64


def check_same_build(model: nn.Module, undrawn: Undrawn | None = None) -> None:
    """Compare the shape and the sum of every parameter with those of the other ranks.

    Args:
        undrawn: its parameters, if they are still to be drawn. The sum is then that of their first few values.

    Raises:
        WorkloadError: a parameter differs; every rank raises it.
    """
    own = []
    for name, one in model.named_parameters():
        values = one.detach()
        if undrawn is not None:
            values = torch.empty(min(FEW, one.numel()))
            undrawn.draw(name, 0, values)
        own.append((name, tuple(one.shape), repr(values.double().sum().item())))
    first, *others = gather_object([own])
    for rank, theirs in enumerate(others, start=1):
        if theirs == first:
            continue
        names = [name for name, *_ in first]
        if names != [name for name, *_ in theirs]:
            what = f"rank 0 has {len(names)} parameters and rank {rank} {len(theirs)}"
            what += ", or they have other names"
        else:
            what = next(
                f"{ours[0]} of rank {rank} is not that of rank 0"
                for ours, its in zip(first, theirs, strict=True)
                if ours != its
            )
        raise WorkloadError(
            f"the workload's build differs between processes: {what}",
            allowed="the same weights for the same torch.manual_seed, in every process",
            fix="draw initial weights with torch alone, without time, os.urandom, hash() or other generators",
        )
