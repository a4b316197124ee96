"""What DeepSpeed's ZeRO adds to the activations of a rank. Pure."""

from collections import Counter
from collections.abc import Iterator

from bench.backends.rank_memory import Unsharded
from bench.records.program import Moment

MAX_BUCKET = 500_000_000
"""Elements: DeepSpeed's default for its buckets. bench makes none larger than what is trained."""
REUSE_DISTANCE = 1_000_000_000
"""Elements: DeepSpeed's default for `stage3_max_reuse_distance`."""
PERSISTENT = 100_000
"""Elements: smaller parameters are fetched after each step, by default of `stage3_param_persistence_threshold`."""
PREFETCHED = 50_000_000
"""Elements: DeepSpeed's default for `stage3_prefetch_bucket_size`. bench makes it no larger than the model."""


class Zero12(Unsharded):
    """DeepSpeed ZeRO-1 and ZeRO-2 (deepspeed/runtime/zero/stage_1_and_2.py).

    Weights are one flat tensor. `setup_buckets` makes a bucket at the first gradient; when it is full, and at the end,
    `average_tensor` flattens and reduces it. ZeRO-1 keeps all gradients until the end of the last backward of a step,
    and its bucket from the first on. ZeRO-2 adds the partition of each micro-batch to that of the ones before. `step`
    flattens a rank's gradients and copies them to fp32, and AdamW steps them as one tensor.
    """

    def begin(self) -> None:
        self.parts["weights"] = self.width * self.all
        self.share = -(-self.stepped // self.ranks)
        self.parts["masters"] = 4 * self.share
        self.parts["moments"] = 2 * 4 * self.share
        self.bucket = min(-(-self.stepped // 1024) * 1024, MAX_BUCKET)
        self.filled = 0
        self.earlier = self.partition = False
        """Whether there is a partition of an earlier micro-batch, and of this one."""

    def on_forward(self) -> None:
        self.partition = False

    def on_event(self, moment: Moment) -> Iterator[None]:
        if moment.event == "gradient" and moment.index is not None:
            size = self.sizes[moment.index]
            if not self.parts["buckets"]:
                self.parts["buckets"] = self.width * self.bucket * (2 if self.cell.train.zero_overlap_comm else 1)
            if self.early:
                yield from self.add(size)
            else:
                yield from self.add_gradient(moment.index)
        if moment.event == "end" and not self.defers:
            if not self.early:
                self.parts["gradients"] = 0
                for size in self.trained:
                    yield from self.add(size)
            yield from self.reduce()
            self.parts["buckets"] = 0
            if self.earlier:
                self.parts["gradients"] -= self.width * self.share
            self.earlier = self.early

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

    def on_step_end(self) -> Iterator[None]:
        yield from self.within("optimizer", 8 * min(max(self.trained, default=0), self.share))  # norms are in fp64
        low, high = self.width * self.share, 4 * self.share
        yield from self.within("gradients", low + high)
        self.parts["gradients"] = high
        yield from self.temporaries([self.share])
        self.parts["gradients"] = 0
        if self.gloo:
            yield from self.within("transport", self.width * min(self.stepped, self.bucket))


class Zero3(Zero12):
    """DeepSpeed ZeRO-3 (deepspeed/runtime/zero/stage3.py, partitioned_param_coordinator.py, partition_parameters.py).

    Its bucket and its partition of the gradients live as long as the engine. The first module of forward fetches the
    weights ahead into one buffer, from which `AllGatherCoalescedHandle.wait` copies them out; the buffer lives until
    the last of them is used. A weight stays gathered while its next use is nearer than `stage3_max_reuse_distance`, and
    is freed after its last: in forward, if backward does not pass it. This counts whole units, and a frozen embedding.
    """

    def begin(self) -> None:
        super().begin()
        self.parts["weights"] = self.width * -(-self.all // self.ranks)
        self.parts["gradients"] = self.width * self.share
        self.parts["buckets"] = self.width * self.bucket
        self.units = Counter[int]()
        for one in self.program.parameters:
            self.units[-1 if one.unit is None else one.unit] += one.elements
        self.passed = {moment.index for moment in self.program.moments if moment.event == "backward"}
        fetched = [one for one in self.program.parameters if one.elements > PERSISTENT]
        elements = min(sum(one.elements for one in fetched), PREFETCHED) if len(fetched) > 1 else 0
        self.buffer = self.width * elements
        lone = [one.elements for one in fetched[:1] if one.unit is None and not one.trained]
        self.embedding = sum(lone)

    def on_forward(self) -> None:
        super().on_forward()
        self.gathered = Counter[int]()
        self.runs_left = Counter[int]()  # forwards whose backward is to come
        self.running: int | None = None
        forward_end = [moment.event for moment in self.program.moments].index("forward_end")
        left = [moment.index for moment in self.program.moments[:forward_end] if moment.event == "leave"]
        self.leaves = sum(index is not None and index < self.program.units for index in left)  # no FSDP2 groups
        if not self.leaves:  # the model is one unit
            self.gathered = self.units.copy()
            self.hold()

    def hold(self, buffer: int = 0) -> None:
        kept = min(self.gathered.total(), REUSE_DISTANCE + max(self.units.values(), default=0))
        self.parts["gathered"] = self.width * kept + buffer

    def on_event(self, moment: Moment) -> Iterator[None]:
        match moment.event:
            case "enter" if self.leaves and not self.gathered:
                self.gathered = self.units.copy()
                self.hold(self.buffer)
                yield
                self.gathered[-1] -= self.embedding
                self.hold(self.buffer)
            case "leave" if self.leaves and moment.index is not None:
                self.runs_left[moment.index] += 1
                if moment.index not in self.passed:
                    del self.gathered[moment.index]
                self.leaves -= 1
                self.hold(self.buffer if self.leaves else 0)
            case "backward" if moment.index != self.running:
                self.run_ends()
                self.running = moment.index
            case "gradient" if moment.index is not None:
                yield from self.add(self.sizes[moment.index])
            case "end":
                yield from self.reduce()
                self.gathered.clear()
                self.hold()

    def run_ends(self) -> None:
        """Free the unit whose backward is over, if it was the last."""
        if self.running is not None:
            self.runs_left[self.running] -= 1
            if not self.runs_left[self.running]:
                del self.gathered[self.running]
                self.hold()

    def reduce(self) -> Iterator[None]:
        yield from self.within("buckets", self.width * self.filled)
        self.filled = 0

    def on_step_end(self) -> Iterator[None]:
        kept = self.parts["gradients"]
        yield from self.within("optimizer", 8 * max(self.trained, default=0) // self.ranks)
        yield from self.within("gradients", (self.width + 4) * self.share)
        self.parts["gradients"] = kept + 4 * self.share
        yield from self.temporaries([self.share])
        self.parts["gradients"] = kept
