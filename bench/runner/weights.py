"""Initial weights that each rank draws where it keeps them. No rank then holds a whole model that it only keeps a part
of, and none draws it on its host.

A workload that has ``draw`` is built on torch's meta device, as torch's and DeepSpeed's own guides do for large models.
All others are built whole on the host: their ``build`` alone knows their weights.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from bench.backends import Backend
from bench.errors import WorkloadError

Draw = Callable[[str, int, int, Tensor], None]
"""`bench.workloads.Workload.draw`."""


class Undrawn:
    """The parameters of a model on the meta device, and where each will get its values from."""

    def __init__(self, model: nn.Module, draw: Draw, seed: int) -> None:
        if lost := next((name for name, buffer in model.named_buffers() if buffer.is_meta), None):
            raise WorkloadError(
                f"the workload has draw, and its build leaves the buffer {lost} without values",
                allowed='buffers made with device="cpu"',
            )
        self.model, self._draw, self._seed = model, draw, seed
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._made: WeakValueDictionary[str, nn.Parameter] = WeakValueDictionary()

    def draw(self, name: str, start: int, out: Tensor) -> None:
        """Write the values of a flattened parameter from index ``start`` on into ``out``."""
        self._draw(name, self._seed, start, out)

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Give the module's own parameters whole values; those of its children stay as they are."""
        for key, parameter in module.named_parameters(recurse=False):
            if not parameter.is_meta:
                continue
            name = self._names[parameter]
            made = self._made.get(name)  # a parameter may have several owners
            if made is None:
                whole = torch.empty_like(parameter, device=device)
                self.draw(name, 0, whole.data.view(-1))
                made = self._made[name] = nn.Parameter(whole, parameter.requires_grad)
            module.register_parameter(key, made)

    def fill_all(self, device: torch.device) -> None:
        """Give every parameter its whole values."""
        for module in self.model.modules():
            self.fill(module, device)

    @contextlib.contextmanager
    def placed(self, accelerator: Accelerator, backend: Backend) -> Iterator[None]:
        """While accelerate prepares the model, and its optimizer, have the parameters drawn as its backend needs it."""
        plugin = getattr(accelerator.state, "fsdp_plugin", None)
        if backend.sharding == "zero3":
            self._partition(accelerator)
        elif plugin is None:
            self.fill_all(accelerator.device)
        elif backend.family == "fsdp":
            plugin.param_init_fn = lambda module: self.fill(module, accelerator.device)
        elif plugin.cpu_ram_efficient_loading:  # rank 0 sends what it has
            self.fill_all(torch.device("cpu"))
        else:
            self._give_addresses()
            yield
            offloaded = isinstance(plugin.cpu_offload, CPUOffloadPolicy)
            self._fill_shards(torch.device("cpu") if offloaded else accelerator.device)
            return
        yield

    def _give_addresses(self) -> None:
        """accelerate finds FSDP2's shards of the optimizer's parameters by address, and on meta they all have none."""
        for index, parameter in enumerate(self._names):
            parameter.data_ptr = lambda index=index: -1 - index  # type: ignore[method-assign,misc]

    def _fill_shards(self, device: torch.device) -> None:
        """Give FSDP2's shards their values. A shard is a range of rows, so of the flattened parameter too."""
        # As nn.Module.to_empty, which would empty the buffers as well.
        self.model._apply(  # type: ignore[no-untyped-call]
            lambda one: torch.empty_like(one, device=device) if one.is_meta else one
        )
        for name, parameter in self.model.named_parameters():
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
                row = parameter.numel() // parameter.shape[0] if parameter.ndim else 1
                self.draw(name, (offset[0] if offset else 0) * row, parameter.to_local().detach().view(-1))

    def _partition(self, accelerator: Accelerator) -> None:
        """Partition parameters for ZeRO-3 one module at a time; DeepSpeed's engine takes them as they are then."""
        from deepspeed import zero

        config = accelerator.state.deepspeed_plugin.deepspeed_config
        stage3 = {name: value for name, value in config["zero_optimization"].items() if value != "auto"}
        dtype = next(iter(self._names)).dtype
        settings: Any = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": stage3}
        # An empty module: what follows needs its settings.
        partitioner = zero.Init(module=nn.Module(), config_dict_or_path=settings, dtype=dtype)
        for module in self.model.modules():
            self.fill(module, partitioner.local_device)
            partitioner._convert_to_zero_parameters(module.parameters(recurse=False))
