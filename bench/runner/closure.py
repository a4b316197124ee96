"""What an optimizer's step does with a closure."""

from collections.abc import Callable

import torch

Closure = Callable[[], float]


def loss_of(closure: Closure | None) -> float | None:
    """Run a closure, which makes the gradients, although a step records none; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
