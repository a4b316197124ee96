"""Optimizers over low-precision weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class MasterWeights(Optimizer):
    """Steps fp32 copies of low-precision weights, then rounds them back into the weights.

    Adam directly over bf16 weights keeps bf16 moments, loses updates smaller than half a unit in the last place, and
    under-reports memory by 8 bytes a parameter (Micikevicius et al. 2018, Mixed Precision Training, section 3.1).

    Its groups, state and defaults are those of ``inner``, so a learning-rate scheduler made from it acts on the
    optimizer that steps.

    Args:
        inner: an optimizer over the low-precision weights, before its first step; it is moved to the fp32 copies
            with every setting kept.
    """

    def __init__(self, inner: Optimizer) -> None:
        self.weights: list[Tensor] = []
        self.masters: list[Tensor] = []
        for group in inner.param_groups:
            weights = group["params"]
            masters = [weight.detach().clone().float().requires_grad_(True) for weight in weights]
            group["params"] = masters
            self.weights += weights
            self.masters += masters
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self._share()
        self._upcast = False

    def _share(self) -> None:
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, self.inner.defaults

    @torch.no_grad()
    def _upcast_gradients(self) -> None:
        if self._upcast:
            return
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self._upcast = True

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the fp32 gradients to a global norm; the step that follows uses them as they are.

        Returns:
            The norm before clipping, fp32, a scalar.
        """
        self._upcast_gradients()
        return torch.nn.utils.clip_grad_norm_(self.masters, max_norm)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        self._upcast_gradients()
        loss = self.inner.step(closure)
        torch._foreach_copy_(self.weights, self.masters)
        self._upcast = False
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)
        _zero(self.weights, set_to_none)
        self._upcast = False

    def state_dict(self) -> dict[str, Any]:
        return {**self.inner.state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict({key: value for key, value in state_dict.items() if key != "masters"})
        self._share()
        for master, saved in zip(self.masters, state_dict["masters"], strict=True):
            master.copy_(saved)


def _zero(tensors: Iterable[Tensor], set_to_none: bool) -> None:
    for tensor in tensors:
        if set_to_none:
            tensor.grad = None
        elif tensor.grad is not None:
            tensor.grad.zero_()
