"""The regime that a cell requests: what its ranks must observe."""

from bench.backends.registry import FAMILIES, NOT_SHARDED, autocasts, backend_of, fp32_weights
from bench.backends.sharding import expected_sharding
from bench.records.base import Device
from bench.records.cell import Cell


def expected_regime(cell: Cell, device: Device) -> dict[str, object]:
    """The regime that the cell requests, as attributes of `Regime`. One that is absent is not checked.

    ddp and single keep fp32 weights and compute under autocast; with ``weights: bf16``, they keep weights in bf16, and
    the optimizer updates fp32 copies of them. DeepSpeed does the latter inside its engine. FSDP's fp32 shards are the
    master weights, and its mixed precision computes in bf16 (torch FSDP MixedPrecision, DeepSpeed bf16).
    """
    backend = backend_of(cell)
    family = FAMILIES[backend.family]
    low = cell.computes_in
    alone = cell.num_processes == 1
    whole = fp32_weights(cell)
    master = None if cell.train.optimizer == "none" else "float32" if cell.train.master_weights else low
    on_cpu = family.distributed_type_on_cpu if device == "cpu" else None
    regime: dict[str, object] = {
        "world_size": cell.num_processes,
        "ranks_per_node": cell.ranks_per_node,
        "distributed_type": on_cpu or family.distributed_type,
        # With one rank, torch's FSDP1 replaces its strategy by NO_SHARD.
        "sharding": "NO_SHARD" if alone and backend.family == "fsdp" else backend.sharding,
        "weights_dtype": "float32" if whole else low,
        "masters_dtype": master,
        "optimizer_dtype": master,
        "matmul_dtype": low,
    }
    if ":" in cell.train.optimizer:  # the user's own may keep its state as it likes
        del regime["optimizer_dtype"]
    if cell.accelerate is not None and backend.family == "deepspeed":
        for name in ("masters_dtype", "optimizer_dtype"):  # a DeepSpeed config may set these, too
            regime.pop(name, None)
    if cell.accelerate is None:
        reduction = "float32" if family.reduces_in_fp32 or autocasts(cell) else low
        regime["reduction_dtype"] = None if alone else reduction
    return regime | expected_sharding(cell)


def shards_parameters(cell: Cell) -> bool:
    """Whether each rank must hold only a part of the parameters."""
    ranks = cell.num_processes // cell.train.dp_replicate_size
    return ranks > 1 and backend_of(cell).sharding not in NOT_SHARDED
