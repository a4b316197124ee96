"""Muon for models whose matrices may be sharded, beside AdamW for all other parameters."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Muon, Optimizer
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from bench.runner.master_weights import Closure, loss_of


class GatheredMuon(Muon):
    """`torch.optim.Muon` that orthogonalizes whole matrices, also where a rank holds only a shard of them.

    Over DTensors, torch 2.13 sums partial products in bf16: after 20 steps of a small model, its weights differ by 6e-4
    from those of one process, and each matrix takes over ten collectives a step. Here momentum stays sharded, and each
    update is gathered once. Every rank orthogonalizes all of it and applies its own shard.
    """

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One step. A closure runs before it, and makes the gradients that are stepped."""
        loss = loss_of(closure)
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, params, grads, momenta)
            for param, grad, momentum in zip(params, grads, momenta, strict=True):
                momentum.lerp_(grad, 1 - group["momentum"])
                update = grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                param.mul_(1 - group["lr"] * group["weight_decay"])
                adjusted_lr = _adjust_lr(group["lr"], group["adjust_lr_fn"], param.shape)
                param.add_(_orthogonal(update, group), alpha=-adjusted_lr)
        return loss


def _orthogonal(update: Tensor, group: dict[str, Any]) -> Tensor:
    """The whole update orthogonalized, sharded as it was."""
    whole = update.full_tensor() if isinstance(update, DTensor) else update
    result = _zeropower_via_newtonschulz(whole, group["ns_coefficients"], group["ns_steps"], group["eps"])
    if isinstance(update, DTensor):  # without a source rank, each rank takes its shard of its own result
        return distribute_tensor(result, update.device_mesh, update.placements, src_data_rank=None)
    return result


class Together(Optimizer):
    """Several optimizers, of different parameters, as one. They share its parameter groups and its state, so that a
    scheduler, a wrapper or a checkpoint that changes these changes what steps.
    """

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = list(islice(groups, len(part.param_groups)))
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One step of each. A closure runs once, before them."""
        loss = loss_of(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def matrices(model: nn.Module, units: tuple[str, ...]) -> Iterator[nn.Parameter]:
    """The parameters that Muon steps: matrices of hidden layers.

    A parameter is one if it has two dimensions, is called ``weight`` and belongs to a unit, but to no module whose
    class name contains ``Embed``. Embeddings, heads, biases and norms are for AdamW, as the docs of `torch.optim.Muon`
    say. A weight that is also used elsewhere, such as a head tied to an embedding, counts as what it is elsewhere.
    """
    hidden: dict[nn.Parameter, bool] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path = name.split(".")
        owners = [model.get_submodule(".".join(path[:depth])) for depth in range(len(path))]
        # fully_shard gives a module a new class, derived from its own.
        kinds = {kind.__name__ for owner in owners for kind in type(owner).__mro__}
        is_hidden = bool(kinds & set(units)) and not any("Embed" in kind for kind in kinds)
        matrix = path[-1] == "weight" and parameter.ndim == 2 and parameter.requires_grad
        hidden[parameter] = is_hidden and matrix and hidden.get(parameter, True)
    return (parameter for parameter, chosen in hidden.items() if chosen)
