"""Sharding options that accelerate has no field for."""

import contextlib
from collections.abc import Iterator

from accelerate import Accelerator, ParallelismConfig
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from bench.backends import backend_of, mesh
from bench.records.cell import Cell


class _Named(ParallelismConfig):  # type: ignore[misc]  # accelerate has no types
    """Dimensions of bench's mesh over which accelerate shards FSDP2."""

    @property
    def fsdp_dim_names(self) -> list[str]:
        return [name for name in self.device_mesh.mesh_dim_names if name.startswith("dp")]


def configure(accelerator: Accelerator, cell: Cell) -> None:
    """Set the options for which an accelerate config has no field, or not for all of their values."""
    train, family = cell.train, backend_of(cell).family
    if family == "deepspeed" and train.zero_overlap_comm is not None:
        zero = accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        zero["overlap_comm"] = train.zero_overlap_comm
    if family == "fsdp2":
        plugin = accelerator.state.fsdp_plugin
        if train.reshard_after_forward is not None:
            plugin.reshard_after_forward = train.reshard_after_forward
        if train.offload != "none":  # only a GPU driver can pin memory
            plugin.cpu_offload = CPUOffloadPolicy(pin_memory=accelerator.device.type != "cpu")


@contextlib.contextmanager
def meshed(accelerator: Accelerator, cell: Cell) -> Iterator[None]:
    """While it prepares a model, have accelerate shard FSDP2 over `bench.backends.mesh`.

    accelerate's own mesh leaves out dimensions of size 1. It also reads the mesh when it prepares a loader, and would
    then take ranks along a dimension that it does not know for ranks that share samples.
    """
    if backend_of(cell).family != "fsdp2" or cell.accelerate is not None:
        yield
        return
    sizes, state, own = mesh(cell), accelerator.state, accelerator.parallelism_config
    named = _Named()
    named.device_mesh = init_device_mesh(accelerator.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    state.device_mesh, state.parallelism_config = named.device_mesh, named
    try:
        yield
    finally:
        state.device_mesh, state.parallelism_config = None, own


def resharded(model: nn.Module) -> dict[nn.Module, int]:
    """Parameters of each group that FSDP2 frees after its forward, by the first of its modules; of a prepared model."""
    found = {}
    for module in model.modules():
        if module is not model and isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            group = state._fsdp_param_group
            if group is not None and group.post_forward_mesh_info is not None:
                found[state._modules[0]] = sum(one._orig_size.numel() for one in group.fsdp_params)
    return found
