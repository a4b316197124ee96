"""What a rank holds at each moment of a step: the activations of a program, and what its backend adds. Pure.

The additions were read in the sources of torch 2.13, accelerate 1.15 and DeepSpeed 0.19.8; each class names the files.
All trained parameters are stepped with AdamW, or none.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bench.backends.fsdp_memory import Fsdp1, Fsdp2
from bench.backends.rank_memory import Unsharded
from bench.backends.registry import backend_of
from bench.backends.zero_memory import Zero3, Zero12
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.program import Program


class Holding(NamedTuple):
    """Memory around one event of a step."""

    when: str
    """``forward``, ``backward`` or ``optimizer``."""
    parts: Mapping[str, int]
    """Bytes that do not depend on the batch."""
    activation_bytes: tuple[int, ...]
    """For each batch of the program."""


RANKS: Mapping[str, Callable[[Cell, Program, Device], Unsharded]] = {
    "none": Unsharded,
    "FULL_SHARD": Fsdp1,
    "SHARD_GRAD_OP": Fsdp1,
    "fully_shard": Fsdp2,
    "zero1": Zero12,
    "zero2": Zero12,
    "zero3": Zero3,
}
"""By the value of `Regime.sharding`."""


def holdings(cell: Cell, program: Program) -> Iterator[Holding]:
    """What a rank of ``cell`` holds, event by event."""
    rank = RANKS[backend_of(cell).sharding](cell, program, program.device)
    rank.parts["weights"] += program.buffers_bytes
    when, last = "forward", program.moments[-1].live_bytes
    for moment in program.moments:
        yield Holding(when, dict(rank.parts), moment.peak_bytes)
        if moment.event == "turn":
            when = "backward"
        other = moment.event != "gradient" and moment.index is not None and moment.index >= program.units
        for _ in () if other and not rank.grouped else rank.meets(moment):
            yield Holding(when, dict(rank.parts), moment.live_bytes)
    for _ in rank.ends():
        yield Holding("optimizer", dict(rank.parts), last)
    yield Holding("optimizer", dict(rank.parts), last)
