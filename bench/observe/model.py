"""The model that a script trains, found by the parameters of its optimizers, and the samples that it is called with."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Hook:
    """A hook of a module. What is copied or saved of the module has one that does nothing and needs no bench."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything and returns None


class WatchedModel:
    """The trained model's calls. `watch` comes after the first step, and `choose` after the next. It keeps no module
    alive that the script is done with."""

    def __init__(self) -> None:
        self._root: Callable[[], nn.Module | None] = lambda: None
        self._others: list[Callable[[], nn.Module | None]] = []
        self._model: Callable[[], nn.Module | None] = lambda: None
        self.forwards = 0
        """Calls of the model that led to a gradient, since `reset`."""
        self.samples = 0
        """Their samples: the first dimension of the first tensor."""
        self._hooks = ExitStack()
        self._depth = 0
        self._calls: Counter[nn.Module] = Counter()

    @property
    def root(self) -> nn.Module | None:
        """The outermost module: the wrapper, if there is one."""
        return self._root()

    @property
    def others(self) -> list[nn.Module]:
        """What is trained beside it, such as the discriminator of a generator."""
        return [module for other in self._others if (module := other()) is not None]

    @property
    def model(self) -> nn.Module | None:
        """The outermost module that a step calls."""
        return self._model()

    def watch(self, optimizers: Sequence[Any]) -> None:
        """Watch all modules for one step, to see which are called, and which within others."""
        self._release()
        self._calls.clear()
        roots = trained_roots(optimizers)
        root = max(roots, key=_trained, default=None)
        self._root, self._others = _weakly(root), [_weakly(other) for other in roots if other is not root]
        for module in {module for root in roots for module in root.modules()}:
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                continue
            self._hooks.enter_context(module.register_forward_pre_hook(Hook(self._enter)))
            self._hooks.enter_context(module.register_forward_hook(Hook(self._leave), always_call=True))

    def choose(self) -> None:
        """From now on, watch the model alone."""
        self._release()
        model = max(self._calls, key=lambda one: (_trained(one), -self._calls[one]), default=None)
        self._calls.clear()
        self._model = _weakly(model)
        if model is not None:
            self._hooks.enter_context(model.register_forward_pre_hook(Hook(self._called), with_kwargs=True))
        self.reset()

    def reset(self) -> None:
        self.forwards = self.samples = 0

    def _release(self) -> None:
        self._hooks.close()
        self._depth = 0

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        if trains():
            if not self._depth:
                self._calls[module] += 1
            self._depth += 1

    def _leave(self, *_: object) -> None:
        if trains():
            self._depth = max(0, self._depth - 1)

    def _called(self, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if trains():
            self.forwards += 1
            self.samples += samples_in((inputs, named)) or 0


def _weakly(module: nn.Module | None) -> Callable[[], nn.Module | None]:
    return weakref.ref(module) if module is not None else lambda: None


def trains() -> bool:
    """Not for a compiler or an export that traces the hook, nor for a forward that backward repeats or that trains
    nothing."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def samples_in(batch: Any) -> int | None:
    """The first dimension of the first tensor; None without one."""
    first = next(_tensors(batch), None)
    return None if first is None else first.size(0)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        if tree.ndim:
            yield tree
    elif isinstance(tree, Mapping):
        yield from (tensor for value in tree.values() for tensor in _tensors(value))
    elif isinstance(tree, list | tuple):
        yield from (tensor for value in tree for tensor in _tensors(value))


def parameters_of(optimizer: Any) -> list[Tensor]:
    """What an optimizer steps; nothing of an engine around one."""
    return [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]


def trained_roots(optimizers: Sequence[Any]) -> list[nn.Module]:
    """The modules within no other that hold what the optimizers step. Engines that step copies hold none of it: then
    all that hold something to train."""
    engines = [one for one in optimizers if isinstance(one, nn.Module)]
    if engines:
        return engines
    stepped = {id(one) for optimizer in optimizers for one in parameters_of(optimizer)}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in vars(one)]
    inner = {id(child) for module in modules for child in module.children()}
    trained = [module for module in modules if id(module) not in inner and _trained(module)]
    return [one for one in trained if not stepped.isdisjoint(map(id, one.parameters()))] or trained


def _trained(module: nn.Module) -> int:
    trained = (one for one in module.parameters() if one.requires_grad and not is_lazy(one))
    return sum(getattr(one, "ds_numel", one.numel()) for one in trained)
