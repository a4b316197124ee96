"""What a step consists of: kinds of work, by the names that profilers give to operators, kernels and ranges."""

import re
from functools import cache
from typing import NamedTuple

from bench.explain.trace import COPY, KERNEL

MATRIX = "matrix products"
ATTENTION = "attention"
OPTIMIZER = "optimizer"
RECOMPUTED = "recomputation"
ELEMENTWISE = "elementwise and norms"
COMPUTE = (MATRIX, ATTENTION, OPTIMIZER, RECOMPUTED, ELEMENTWISE)
"""Where two kernels run at once, the time is that of the first of these."""
EXPOSED = "exposed"
"""A collective that moves data while nothing computes."""
WAITING = "waiting for the last rank in"
"""A collective that another rank has not reached."""
COPIES = "copies"
"""To, from or within a device. On a CPU, of one tensor to another, also where the type changes."""
DATA = "waiting for data"
GAP = "host gaps"
"""Nothing runs, and nothing was queued: Python, launches, a sleep."""

STEP, PHASE, WAIT, RECOMPUTE, UNIT = "bench:step", "bench:phase:", "bench:wait", "bench:recompute", "bench:unit:"
"""Names of the ranges that a profiled attempt marks."""

OTHER = "other"
"""The phase of what no mark covers."""
PHASES = {
    "dataload_wait": "loading",
    "forward": "forward",
    "bwd": "backward",
    "unscale_clip": "clipping",
    "optim_step": "optimizer step",
    "zero_grad_sched": "resetting gradients",
    "sync_gather": "gathering losses",
}
"""Words for the phases of a step of bench."""
_PHASES_OF_OTHERS = (
    ("loading", re.compile(r"DataLoader|wait_for_batch|load_batch|dataload|next_batch", re.IGNORECASE)),
    ("optimizer step", re.compile(r"^(?!Optimizer\.zero_grad).*optimizer", re.IGNORECASE)),
    ("backward", re.compile(r"^(## )?backward|^bwd", re.IGNORECASE)),
    ("forward", re.compile(r"^(## )?forward|\.forward$|^fwd", re.IGNORECASE)),
)
ORDER = ("loading", "optimizer step", "clipping", "backward", "forward", "resetting gradients", "gathering losses")
"""Of two marks at one time, the first of these names the phase: DeepSpeed's optimizer steps within backward."""

_ATTENTION = re.compile(r"scaled_dot_product|flash|fmha|attention", re.IGNORECASE)
_MATRIX = re.compile(
    r"gemm|gemv|cutlass|xmma|cublas|nvjet|matmul|conv(?!er)|wgrad|dgrad|::(add|sparse_|_scaled_|addb|b)?mm\b|::(mkldnn_)?linear"
    r"|::baddbmm|::einsum|::addmv|::mv\b|::dot\b|splitKreduce|^Cijk_",
    re.IGNORECASE,
)
_COPY_OF_HOST = re.compile(r"::\w*(copy|chunk_cat)")
_OPTIMIZER = re.compile(r"multi_tensor_apply(?!.*(Copy|Norm|Scale))|(?<![a-z])adam", re.IGNORECASE)
_GENERATED = re.compile(r"triton_(poi|per|red|for)_")
"""Kernels of torch's compiler that are no products; their names list what they fuse."""
_COLLECTIVE = ("_c10d_functional::", "c10d::")
_COLLECTIVES = (
    ("reduce-scatter", "reducescatter"),
    ("all-reduce", "allreduce"),
    ("all-gather", "allgather"),
    ("all-to-all", "alltoall|sendrecv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
_COPIES = (("to the host", "dtoh"), ("to the device", "htod"))


class Part(NamedTuple):
    """A part of a step."""

    kind: str
    detail: str = ""
    """The collective, or the direction of a copy."""
    phase: str = ""

    @property
    def name(self) -> str:
        """``exposed all-gather in backward``."""
        what = f"{self.kind} {self.detail}".strip()
        if not self.phase or self.kind in (OPTIMIZER, DATA) or self.phase == "other":
            return what
        return f"{what} in {self.phase}" if not what.endswith(f" in {self.phase}") else what


@cache
def is_collective(name: str) -> bool:
    """Whether a kernel communicates, or a range of gloo is a collective."""
    lowered = name.lower()
    return lowered.startswith(("nccl", "rccl", "gloo:")) or "ncclkernel" in lowered or "nccldevkernel" in lowered


@cache
def collective(name: str) -> str:
    """``all-reduce`` for ``ncclKernel_AllReduce_RING_LL_Sum_float(...)`` and for ``gloo:all_reduce``."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((words for words, pattern in _COLLECTIVES if re.search(pattern, plain)), "collective")


@cache
def kind_of_device(name: str, kind: str, phase: str, *, recomputed: bool) -> Part:
    """The part that an event of the device belongs to, if nothing else runs."""
    if kind in COPY:
        plain = re.sub(r"[^a-z]", "", name.lower())
        return Part(COPIES, next((words for words, pattern in _COPIES if pattern in plain), "within the device"), phase)
    assert kind == KERNEL
    if is_collective(name):
        return Part(EXPOSED, collective(name), phase)
    if recomputed:
        return Part(RECOMPUTED, phase=phase)
    if phase == "optimizer step" or (phase == OTHER and _OPTIMIZER.search(name)):
        return Part(OPTIMIZER, phase="optimizer step")
    return Part(kind_of_compute(name), phase=phase)


@cache
def kind_of_compute(name: str) -> str:
    if _GENERATED.match(name):
        return ELEMENTWISE
    if _ATTENTION.search(name):
        return ATTENTION
    return MATRIX if _MATRIX.search(name) else ELEMENTWISE


@cache
def kind_of_host(name: str) -> str:
    """The kind of work of an operator that runs on a CPU."""
    return COPIES if _COPY_OF_HOST.search(name) else kind_of_compute(name)


@cache
def is_attention(name: str) -> bool:
    return _ATTENTION.search(name) is not None


@cache
def computes(name: str) -> bool:
    """Whether an operator of the host does work of its own: autograd's nodes and collectives only contain such."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd", "torch::distributed", *_COLLECTIVE))


def waits(name: str) -> bool:
    """Whether an operator of the host issues a functional collective, such as a DTensor's, or waits for one."""
    return name.startswith(_COLLECTIVE[0])


def phase_of_mark(name: str) -> str | None:
    """The phase that a named range marks; None if it marks none."""
    if name.startswith(PHASE):
        phase = name.removeprefix(PHASE)
        return PHASES.get(phase, phase)
    if name.startswith("bench:"):
        return None
    return next((phase for phase, pattern in _PHASES_OF_OTHERS if pattern.search(name)), None)
