"""Traces that are written by hand."""

from bench.explain import parts
from bench.explain.trace import Event, Trace

MS = 1_000_000


def host(name: str, start: float, end: float, kind: str = "cpu_op", thread: str = "1") -> Event:
    return Event(name, round(start * MS), round(end * MS), kind, thread)


def mark(name: str, start: float, end: float, thread: str = "1") -> Event:
    return host(name, start, end, "user_annotation", thread)


def kernel(name: str, start: float, end: float, launched: float, stream: str = "7", kind: str = "kernel") -> Event:
    return Event(name, round(start * MS), round(end * MS), kind, stream, launched=round(launched * MS))


def a_trace(rank: int, *events: Event, world_size: int | None = None) -> Trace:
    return Trace(
        name=f"rank{rank}",
        rank=rank,
        world_size=world_size,
        host=[one for one in events if one.kind == "cpu_op"],
        marks=[one for one in events if one.kind == "user_annotation"],
        device=[one for one in events if one.launched is not None],
    )


DEVICE = (
    mark(parts.STEP, 0, 100),
    mark("bench:phase:dataload_wait", 0, 10),
    mark("bench:phase:forward", 10, 30),
    mark("bench:phase:bwd", 30, 60),
    mark("bench:recompute", 40, 45),
    mark("bench:phase:optim_step", 60, 100),
    kernel("Memcpy HtoD (Pageable -> Device)", 5, 12, 5, kind="gpu_memcpy"),
    kernel("ampere_bf16_s16816gemm", 15, 25, 12),
    kernel("flash_fwd_kernel", 25, 35, 13),
    kernel("vectorized_layer_norm_kernel", 32, 38, 31, stream="8"),
    kernel("ampere_bf16_s16816gemm", 45, 50, 42),
    kernel("ncclDevKernel_AllGather_RING_LL", 48, 58, 43, stream="9"),
    kernel("Memcpy DtoH (Device -> Pinned)", 60, 65, 59, kind="gpu_memcpy"),
    kernel("multi_tensor_apply_kernel", 70, 90, 61),
)
