"""What a rank of `single` or DDP adds to its activations, and the base of what other backends add. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.backends.model_state import foreach_copies
from bench.backends.registry import backend_of
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.program import Moment, Program


def loop_copies(sizes: Sequence[int]) -> int:
    """Elements that AdamW's plain loop holds at most: the root and the quotient of one tensor, and the quotient of the
    tensor before it, whose variable still holds it (torch/optim/adam.py, `denom`)."""
    return max((2 * size + before for before, size in pairwise([0, *sizes])), default=0)


class Holding(NamedTuple):
    """Memory around one event of a step."""

    when: str
    """``forward``, ``backward`` or ``optimizer``."""
    parts: Mapping[str, int]
    """Bytes that do not depend on the batch."""
    activation_bytes: tuple[int, ...]
    """For each batch of the program."""


class Unsharded:
    """A rank that holds the whole model: `single` and DDP.

    DDP's buckets hold a second copy of all gradients (torch/csrc/distributed/c10d/reducer.cpp, `initialize_buckets`):
    accelerate leaves `gradient_as_bucket_view` off. MasterWeights copies gradients to fp32 when it clips them. What
    autocast makes of fp32 weights is in the program, with the activations.
    """

    grouped = False
    """Whether it shards the program's other groups, too."""

    def __init__(self, cell: Cell, program: Program, device: Device) -> None:
        self.cell, self.program, self.device = cell, program, device
        self.ranks, self.width = cell.num_processes, program.weights_bytes
        self.sizes = [one.elements for one in program.parameters]
        self.trained = [one.elements for one in program.parameters if one.trained]
        self.all, self.stepped = sum(self.sizes), sum(self.trained)
        self.steps = cell.train.optimizer != "none"
        self.parts = Counter[str]()
        self.with_gradient = set[int]()
        """Parameters whose whole gradient is held."""
        self.early = cell.reduces_each(backend_of(cell).sharding)
        """Whether ranks reduce gradients in each micro-batch."""
        self.defers = False
        """Whether those of this one are reduced in a later one."""
        self.begin()

    @property
    def gloo(self) -> bool:
        return self.device == "cpu" and self.ranks > 1

    @property
    def own_masters(self) -> bool:
        return self.width == 2 and self.steps and self.cell.train.master_weights

    def begin(self) -> None:
        """What is held throughout."""
        self.parts["weights"] = self.width * self.all
        self.parts["masters"] = 4 * self.stepped if self.own_masters else 0
        self.parts["moments"] = 2 * (4 if self.own_masters else self.width) * self.stepped if self.steps else 0
        self.parts["buckets"] = self.width * self.stepped if self.ranks > 1 else 0

    def step(self, batch: int) -> Iterator[Holding]:
        """What is held at each event of a step at this batch. A third micro-batch holds what the second does."""
        for left in reversed(range(min(2, self.cell.micro_batches(batch)))):
            self.defers, when = left > 0 and not self.early, "forward"
            self.on_forward()
            for moment in self.program.moments:
                yield Holding(when, dict(self.parts), moment.peak_bytes)
                if moment.event == "forward_end":
                    when = "backward"
                other = moment.event != "gradient" and moment.index is not None and moment.index >= self.program.units
                for _ in () if other and not self.grouped else self.on_event(moment):
                    yield Holding(when, dict(self.parts), moment.live_bytes)
        last = self.program.moments[-1].live_bytes
        for _ in self.on_step_end():
            yield Holding("optimizer", dict(self.parts), last)
        yield Holding("optimizer", dict(self.parts), last)

    def on_forward(self) -> None:
        """A forward begins. What the backward before it has left stays."""

    def on_event(self, moment: Moment) -> Iterator[None]:
        """Change the parts at an event. Yields where they are at a peak of their own."""
        if moment.event == "gradient" and moment.index is not None:
            yield from self.add_gradient(moment.index)

    def add_gradient(self, parameter: int) -> Iterator[None]:
        """A whole gradient, which stays; a later one is added to it and freed."""
        size = self.width * self.sizes[parameter]
        if parameter in self.with_gradient:
            yield from self.within("gradients", size)
        else:
            self.with_gradient.add(parameter)
            self.parts["gradients"] += size

    def on_step_end(self) -> Iterator[None]:
        """Clipping and the optimizer's step, after backward."""
        if self.own_masters:
            self.parts["gradients"] += 4 * self.stepped
        if self.steps:
            yield from self.temporaries(self.trained)

    def temporaries(self, sizes: list[int]) -> Iterator[None]:
        """What AdamW holds for a short time (torch/optim/adam.py): its plain loop as `loop_copies` says, foreach a root
        of all tensors, fused nothing.

        Args:
            sizes: elements of each tensor that it steps on this rank.
        """
        train = self.cell.train
        if train.fused or (train.fused is None and self.device == "cuda" and train.foreach is None):
            extra = 0
        elif train.foreach:
            extra = foreach_copies(sum(sizes))
        else:
            extra = 4 * loop_copies(sizes)
        self.parts["optimizer"] += extra
        yield
        self.parts["optimizer"] -= extra

    def within(self, part: str, extra: int) -> Iterator[None]:
        """A peak with ``extra`` bytes of ``part`` that are freed at once."""
        self.parts[part] += extra
        yield
        self.parts[part] -= extra
