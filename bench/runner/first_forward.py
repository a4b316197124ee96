"""What the first forward does with weights: what would train wrong without an error, or end in one that names none."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.autograd_function import custom_function_call
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from bench.errors import InputError, WorkloadError
from bench.runner import oom

DERIVED = (
    "ZeRO-3 gathers the weights of a module for its forward and one backward alone, and the model's forward computes a"
    " derivative, through which backward passes again: use another backend, such as zero2 or fsdp"
)


def not_gathered(kind: str, weight: str = "some") -> str:
    """What to say of a ``weight`` that is used where FSDP has not gathered it."""
    return (
        f"{kind} gathers the weights of a unit for its forward and backward alone, and the model uses {weight} at"
        " another time; let it call the unit itself, or name a larger module in the workload's units, or none:"
        " `units = ()`"
    )


class FirstForward(TorchFunctionMode):
    """Watches one call of a model. Finds weights that are used while each rank has a part of them, and such that no
    optimizer has: in what is given to an operator that fails, and among the leaves of the loss's graph."""

    def __init__(self, model: nn.Module) -> None:
        """Name the modules of a model that is not sharded yet."""
        super().__init__()
        self._paths = {module: path for path, module in model.named_modules()}
        self._classes = {module: type(module).__name__ for module in self._paths}
        self._called: nn.Module | None = None
        self.derives = False
        """Whether forward computed a gradient."""

    def run(self, model: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call ``model``, the same as before or sharded since."""
        self._called = model if isinstance(model, nn.Module) else None
        # What is compiled meanwhile is compiled once more without the mode; the mode of a plan looks at its caller.
        modules = self._called.modules() if self._called is not None else ()
        if torch._C._len_torch_function_stack() or any(one._compiled_call_impl is not None for one in modules):
            return model(*arguments, **keywords)
        with self:
            return model(*arguments, **keywords)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.derives |= func is torch.autograd.grad
        if func is custom_function_call and args[0].__module__.startswith("deepspeed."):  # may crash in `torch.func`
            raise InputError(DERIVED)
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            if not oom.find(error, limited=True):
                self._refuse(leaves := _leaves((args, kwargs)), leaves)
            raise

    def check(self, loss: Tensor, output: object) -> None:
        """Look at what ``loss`` is made of.

        Args:
            output: of the model. What the loss alone is made of, such as weights of its own, is not to be trained.

        Raises:
            InputError: of a part of a weight: values are missing, and ranks do not sum its gradient.
            WorkloadError: of a weight that no optimizer has.
        """
        self._refuse(_leaves(loss), _leaves(output))

    def _refuse(self, used: set[Tensor], trained: set[Tensor]) -> None:
        known = set[Tensor]()
        for module in self._called.modules() if self._called is not None else ():
            known.update(module.parameters(recurse=False))
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
                flat: Any = module._handle.flat_param
                known.add(flat)
                parts = [*(flat._params or ()), *(flat._shared_params or ())]
                for part, where in zip(parts, [*flat._param_infos, *flat._shared_param_infos], strict=False):
                    if part in used:
                        path = f"{self._paths.get(where.module, '')}.{where.param_name}".lstrip(".")
                        raise InputError(not_gathered("FSDP1", path))
            if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group):
                known.update(one._unsharded_param for one in group.fsdp_params if hasattr(one, "_unsharded_param"))
        lost = (one for one in (used & trained) - known if isinstance(one, nn.Parameter) and one.requires_grad)
        if known and (leaf := next(lost, None)) is not None:
            raise WorkloadError(
                f"{self._holder(leaf)}: it gets a gradient, but is not among the model's parameters, which an optimizer"
                " updates",
                fix="hold it in an attribute of its own, or in nn.ModuleList, nn.ModuleDict or nn.ParameterList; if it"
                " is not to be trained, call `requires_grad_(False)`",
            )

    def _holder(self, leaf: nn.Parameter) -> str:
        """What and where an unregistered parameter is."""
        for module, kind in self._classes.items():
            for name, held in vars(module).items():
                for part in tree_leaves(held):
                    if part is leaf or (isinstance(part, nn.Module) and any(one is leaf for one in part.parameters())):
                        return f"{kind}.{name} of the workload's model holds a {type(part).__name__}"
        return f"forward of the workload's model uses a parameter of the shape {tuple(leaf.shape)}"


def _leaves(tree: object) -> set[Tensor]:
    """The leaves of the autograd graphs of the tensors in ``tree``."""
    tensors = [part for part in tree_leaves(tree) if isinstance(part, Tensor)]
    found = {one if one._base is None else one._base for one in tensors if one.is_leaf}
    nodes: list[Any] = [one.grad_fn for one in tensors if one.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "AccumulateGrad":
            found.add(node.variable)
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        nodes += new
    return found
