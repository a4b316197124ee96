"""Optimizers over low-precision weights, and what an optimizer's step does with a closure."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Closure = Callable[[], float]


def loss_of(closure: Closure | None) -> float | None:
    """Run a closure, which makes the gradients, although a step records none; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class MasterWeights(Optimizer):
    """Steps fp32 copies of low-precision weights, then rounds them back into the weights.

    Adam directly over bf16 weights keeps bf16 moments, loses updates smaller than half a unit in the last place, and
    under-reports memory by 8 bytes a parameter (Micikevicius et al. 2018, Mixed Precision Training, section 3.1).

    Its groups, state and defaults are those of ``inner``, so a learning-rate scheduler made from it acts on the
    optimizer that steps.

    Args:
        inner: an optimizer over the low-precision weights, which may have stepped already; it is moved to the fp32
            copies with every setting and its state kept.
    """

    def __init__(self, inner: Optimizer) -> None:
        self.weights: list[Tensor] = []
        self.masters: list[Tensor] = []
        for group in inner.param_groups:
            group["params"] = self._adopt(list(group["params"]))
        for weight, master in zip(self.weights, self.masters, strict=True):
            if weight in inner.state:
                inner.state[master] = _in_fp32(inner.state.pop(weight), master)
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self._share()
        self._upcast = False

    def _adopt(self, weights: list[Tensor]) -> list[Tensor]:
        """The masters of these weights."""
        masters = _masters_of(weights)
        self.weights += weights
        self.masters += masters
        return masters

    def _share(self) -> None:
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, self.inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer`; the new weights get masters too."""
        if not hasattr(self, "inner"):  # called by the base class for the groups that ``inner`` has already
            super().add_param_group(param_group)
            return
        params = param_group["params"]
        weights = [params] if isinstance(params, Tensor) else list(params)
        if known := {id(weight) for weight in self.weights} & {id(weight) for weight in weights}:
            raise ValueError(f"{len(known)} of these weights are in a group of this optimizer already")
        masters = _masters_of(weights)
        self.inner.add_param_group({**param_group, "params": masters})  # which may refuse: then nothing has changed
        self.weights += weights
        self.masters += masters

    @torch.no_grad()
    def rebuild(self) -> None:
        """Take the masters from the weights as they are now, where they are now; Adam's state moves along.

        For weights that were moved, cast or loaded behind this optimizer's back. The masters stay the same objects.
        """
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.data = weight.detach().clone().float()
            if master in self.state:
                self.state[master] = _in_fp32(self.state[master], master)

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
        self._upcast = False  # a second clip sees new gradients too
        self._upcast_gradients()
        return torch.nn.utils.clip_grad_norm_(self.masters, max_norm)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One step of ``inner``. A closure runs once, before it, and makes the gradients that are stepped."""
        loss = loss_of(closure)
        if closure is not None:
            self._upcast = False
        self._upcast_gradients()
        self.inner.step()
        if self.weights:
            torch._foreach_copy_(self.weights, self.masters)
        self._upcast = False
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)
        _zero(self.weights, set_to_none)
        self._upcast = False

    def state_dict(self) -> dict[str, Any]:
        """That of ``inner`` and the masters, which hold what the weights have been rounded to."""
        return {**self.inner.state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state. If it has no masters, they are made from the current weights.

        Raises:
            ValueError: the saved masters are not of these weights.
        """
        saved = state_dict.get("masters")
        if saved is not None and [tuple(master.shape) for master in saved] != [tuple(m.shape) for m in self.masters]:
            raise ValueError("the saved master weights differ from these weights in number or shape")
        self.inner.load_state_dict({key: value for key, value in state_dict.items() if key != "masters"})
        self._share()
        self.rebuild()
        if saved is not None:
            for master, value in zip(self.masters, saved, strict=True):
                master.copy_(value)


def _masters_of(weights: Iterable[Tensor]) -> list[Tensor]:
    return [weight.detach().clone().float().requires_grad_(True) for weight in weights]


def _in_fp32(state: dict[str, Any], master: Tensor) -> dict[str, Any]:
    """An optimizer's state of one weight, moments in the master's dtype and place; step counts stay as they are."""
    return {
        name: value.to(master) if isinstance(value, Tensor) and value.shape == master.shape else value
        for name, value in state.items()
    }


def _zero(tensors: Iterable[Tensor], set_to_none: bool) -> None:
    for tensor in tensors:
        if set_to_none:
            tensor.grad = None
        elif tensor.grad is not None:
            tensor.grad.zero_()
