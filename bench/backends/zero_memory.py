"""What DeepSpeed's ZeRO adds to the activations of a rank. Pure."""

from collections import Counter
from collections.abc import Iterator

from bench.backends.rank_memory import Unsharded
from bench.backends.registry import backend_of
from bench.records.program import Moment

MAX_BUCKET = 500_000_000
"""Elements: DeepSpeed's default for its buckets. bench makes none larger than the model."""
REUSE_DISTANCE = 1_000_000_000
"""Elements: DeepSpeed's default for `stage3_max_reuse_distance`."""


class Zero12(Unsharded):
    """DeepSpeed ZeRO-1 and ZeRO-2 (deepspeed/runtime/zero/stage_1_and_2.py).

    Weights are one flat tensor. `setup_buckets` makes a bucket at the first gradient; when it is full, and at the end,
    `average_tensor` flattens and reduces it. ZeRO-1 keeps all gradients until the end of backward. `step` flattens a
    rank's gradients and copies them to fp32, and AdamW steps them as one tensor.
    """

    def begin(self) -> None:
        self.parts["weights"] = self.width * self.all
        self.share = -(-self.stepped // self.ranks)
        self.parts["masters"] = 4 * self.share
        self.parts["moments"] = 2 * 4 * self.share
        self.bucket = min(-(-self.all // 1024) * 1024, MAX_BUCKET)
        self.filled = 0
        self.partition = False

    @property
    def early(self) -> bool:
        return backend_of(self.cell).sharding == "zero2"

    def meets(self, moment: Moment) -> Iterator[None]:
        if moment.event == "gradient" and moment.index is not None:
            size = self.sizes[moment.index]
            if not self.parts["buckets"]:
                self.parts["buckets"] = self.width * self.bucket * (2 if self.cell.train.zero_overlap_comm else 1)
            if self.early:
                yield from self.add(size)
            else:
                self.parts["gradients"] += self.width * size
        if moment.event == "end":
            if not self.early:
                self.parts["gradients"] = 0
                for size in self.trained:
                    yield from self.add(size)
            yield from self.reduce()
            self.parts["buckets"] = 0

    def add(self, size: int) -> Iterator[None]:
        yield from self.within("gradients", self.width * size)
        if self.filled + size > self.bucket:
            yield from self.reduce()
        self.filled += size

    def reduce(self) -> Iterator[None]:
        if not self.filled:
            return
        yield from self.within("buckets", self.width * self.filled)
        if not self.partition:
            self.partition = True
            self.parts["gradients"] += self.width * self.share
        self.filled = 0

    def ends(self) -> Iterator[None]:
        yield from self.within("optimizer", 8 * min(max(self.trained, default=0), self.share))  # norms are in fp64
        low, high = self.width * self.share, 4 * self.share
        yield from self.within("gradients", low + high)
        self.parts["gradients"] = high
        yield from self.temporaries([self.share])
        self.parts["gradients"] = 0
        if self.gloo:
            yield from self.within("transport", self.width * min(self.all, self.bucket))


class Zero3(Zero12):
    """DeepSpeed ZeRO-3 (deepspeed/runtime/zero/stage3.py, partitioned_param_coordinator.py).

    Its bucket and its partition of the gradients live as long as the engine. A weight stays gathered while its next use
    is nearer than `stage3_max_reuse_distance`; this counts whole units.
    """

    def begin(self) -> None:
        super().begin()
        self.parts["weights"] = self.width * -(-self.all // self.ranks)
        self.parts["gradients"] = self.width * self.share
        self.parts["buckets"] = self.width * self.bucket
        self.gathered = Counter[int]()
        self.units = Counter[int]()
        for one in self.program.parameters:
            self.units[-1 if one.unit is None else one.unit] += one.elements

    def meets(self, moment: Moment) -> Iterator[None]:
        if moment.event == "enter":
            for unit in (-1, moment.index):
                if unit is not None and unit not in self.gathered:
                    self.gathered[unit] = self.units[unit]
                    size = self.width * self.units[unit]
                    self.parts["gathered"] = self.width * min(self.gathered.total(), REUSE_DISTANCE + self.units[unit])
                    yield from self.within("transport", size if self.gloo else 0)
        if moment.event == "gradient" and moment.index is not None:
            yield from self.add(self.sizes[moment.index])
        if moment.event == "end":
            yield from self.reduce()
            self.gathered.clear()
            self.parts["gathered"] = 0

    def reduce(self) -> Iterator[None]:
        yield from self.within("buckets", self.width * self.filled)
        self.filled = 0

    def ends(self) -> Iterator[None]:
        kept = self.parts["gradients"]
        yield from self.within("optimizer", 8 * max(self.trained, default=0) // self.ranks)
        yield from self.within("gradients", (self.width + 4) * self.share)
        self.parts["gradients"] = kept + 4 * self.share
        yield from self.temporaries([self.share])
        self.parts["gradients"] = kept
