"""How much of each parameter a backend holds on a GPU, before anything has run. Pure.

What a run has shown is compared in bench/report/theory.py, which has the sources of these figures.
"""

from bench.backends.registry import Backend

UNSHARDED_BYTES = 18
"""A bf16 weight, an fp32 gradient and master, and two moments: what `auto_preset` of a workload counts."""


def foreach_copies(elements: int) -> int:
    """Bytes for which AdamW's foreach implementation copies its second moments during a step, in fp32."""
    return 4 * elements


def bytes_per_parameter(
    backend: Backend,
    ranks: int,
    *,
    replicas: int = 1,
    foreach: bool = False,
    keeps_whole: bool = False,
    fp32_weights: bool = False,
) -> float:
    """Bytes that a rank holds of each parameter in a step of bf16 training with AdamW.

    Args:
        replicas: of the sharded state, with FSDP's hybrid sharding.
        foreach: AdamW's foreach implementation copies the masters during its step.
        fp32_weights: `single` and DDP run under autocast over fp32 weights. Its bf16 copies are gone when all gradients
            are there.
        keeps_whole: FSDP keeps gathered weights until backward, as SHARD_GRAD_OP always does.
    """
    optimizer = 16 + (foreach_copies(1) if foreach else 0)  # fp32: a gradient, a master, two moments
    shares = 1 if backend.sharding in ("none", "NO_SHARD", "zero0") else ranks
    match backend.family:
        case "fsdp" | "fsdp2":
            gathered = 2 if keeps_whole or backend.sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else 0
            return gathered + optimizer / max(1, shares // replicas)  # the master is the weight
        case "deepspeed":
            weight = 2 / (ranks if backend.sharding == "zero3" else 1)
            gradient = 2 / (ranks if backend.sharding in ("zero2", "zero3") else 1)
            return weight + gradient + optimizer / shares
    buckets = backend.family == "ddp" and ranks > 1
    if fp32_weights:
        return optimizer + 4 * buckets  # the master is the weight
    return 2 + 2 + 2 * buckets + optimizer
