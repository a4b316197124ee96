"""What a rank of `single` or DDP adds to its activations, and the base of what other backends add. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from bench.backends.model_state import foreach_copies
from bench.backends.registry import backend_of
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.program import Moment, Program


def loop_copies(sizes: Sequence[int]) -> int:
    """Elements that AdamW's plain loop holds at most: the root and the quotient of one tensor, and the quotient of the
    tensor before it, whose variable still holds it (torch/optim/adam.py, `denom`)."""
    return max((2 * size + before for before, size in pairwise([0, *sizes])), default=0)


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
        self.first, self.defers = True, False
        self.early = cell.reduces_each(backend_of(cell).sharding)
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

    def on_micro_batch(self, *, first: bool, last: bool) -> None:
        """A micro-batch of the step begins; what holds back gradients reduces them in the last one."""
        self.first, self.defers = first, not last and not self.early

    def on_event(self, moment: Moment) -> Iterator[None]:
        """Change the parts at an event. Yields where they are at a peak of their own."""
        if moment.event == "gradient" and moment.index is not None:
            yield from self.add_gradient(self.width * self.sizes[moment.index])

    def add_gradient(self, size: int) -> Iterator[None]:
        """A whole gradient, which stays; one of a later micro-batch is added to it and freed."""
        if self.first:
            self.parts["gradients"] += size
        else:
            yield from self.within("gradients", size)

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
