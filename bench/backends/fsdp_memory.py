"""What FSDP adds to the activations of a rank, in both of its versions. Pure."""

from collections import Counter
from collections.abc import Iterator

from bench.backends.rank_memory import Unsharded, loop_copies
from bench.backends.registry import backend_of
from bench.records.program import Moment, Parameter

RANKS_LOOKED_AT = 64
"""Of which parts are compared; with more ranks, parts are small."""


class Sharded(Unsharded):
    """FSDP: fp32 shards, and units whose weights are gathered in the dtype that computes."""

    def begin(self) -> None:
        self.units = Counter[int]()  # elements by unit; the root is -1
        self.left = Counter[int]()  # trained parameters of a unit whose gradients are to come
        for one in self.program.parameters:
            self.units[self.owner(one)] += one.elements
            self.left[self.owner(one)] += one.trained
        self.of_backward = self.left.copy()
        self.trains = set(+self.left)  # the other units get no gradient
        self.sharded = set[int]()  # units with a shard of an earlier run's gradient
        share = 4 * -(-self.all // self.shards)
        self.parts["weights"] = share
        self.parts["moments"] = 2 * 4 * -(-self.stepped // self.shards) if self.steps else 0
        self.gathered: set[int] = set()
        self.pieces = Counter[int]()  # gradients by unit that are not reduced yet

    def on_forward(self) -> None:
        self.left, self.order = self.of_backward.copy(), list[int]()
        self.forward, self.running = True, -1

    @staticmethod
    def unit_of(index: int | None) -> int:
        return -1 if index is None else index

    def owner(self, parameter: Parameter) -> int:
        return self.unit_of(parameter.unit)

    @property
    def shards(self) -> int:
        return max(1, self.ranks // self.cell.train.dp_replicate_size)

    def weight_bytes(self, unit: int) -> int:
        return self.width * self.units[unit]

    def on_event(self, moment: Moment) -> Iterator[None]:
        if moment.event == "enter" and self.forward:
            yield from self.gather(-1)
            yield from self.gather(self.unit_of(moment.index))

    def gather(self, unit: int) -> Iterator[None]:
        """Make a unit whole, if it is not."""
        raise NotImplementedError

    def collects(self, unit: int) -> Iterator[None]:
        """A peak while a unit is gathered: the shard in the low precision, and gloo's own copy."""
        low = self.weight_bytes(unit) // self.shards if self.width == 2 else 0
        yield from self.sends(self.weight_bytes(unit), "gathered", low)

    def sends(self, size: int, part: str, extra: int) -> Iterator[None]:
        """A peak while a collective of ``size`` bytes runs, with ``extra`` bytes of ``part``."""
        transport = size if self.gloo else 0
        self.parts["transport"] += transport
        yield from self.within(part, extra)
        self.parts["transport"] -= transport

    def shard(self, unit: int, size: int) -> Iterator[None]:
        """The reduced gradient of a rank, which stays; a later one is added to it and freed."""
        if unit in self.sharded:
            yield from self.within("gradients", size)
        else:
            self.parts["gradients"] += size
            self.sharded.add(unit)

    def on_step_end(self) -> Iterator[None]:
        if self.steps:
            yield from self.temporaries([-(-size // self.shards) for size in self.trained])

    def free(self, unit: int) -> None:
        if unit in self.gathered:
            self.gathered.remove(unit)
            self.parts["gathered"] -= self.weight_bytes(unit)


class Fsdp1(Sharded):
    """FullyShardedDataParallel (torch/distributed/fsdp: `_flat_param.py`, `_runtime_utils.py`).

    A unit is one flat parameter. Its forward gathers it, after a copy of the shard in the low precision; backward
    gathers it once, together with the unit that comes next, and keeps it to its last gradient. The gradient of a flat
    parameter is whole: each run of the unit makes one, as large as the unit, and they meet before they are reduced.
    """

    @property
    def keeps(self) -> bool:
        return "SHARD_GRAD_OP" in self.sharding or self.sharding == "HYBRID_SHARD_ZERO2"

    @property
    def sharding(self) -> str:
        return backend_of(self.cell).sharding

    def on_step_end(self) -> Iterator[None]:
        if self.steps:
            ranks = range(min(self.shards, RANKS_LOOKED_AT))
            most = sum if self.cell.train.foreach else loop_copies
            yield from self.temporaries(max(map(self.pieces_on, ranks), key=most))

    def pieces_on(self, rank: int) -> list[int]:
        """Elements of the trained parameters on a rank. A flat parameter is cut into equal parts, wherever that is:
        one rank may hold all of a parameter."""
        found, ends = list[int](), Counter[int]()
        for one in self.program.parameters:
            unit = self.owner(one)
            part, begin = -(-self.units[unit] // self.shards), ends[unit]
            ends[unit] += one.elements
            inside = min(ends[unit], (rank + 1) * part) - max(begin, rank * part)
            if one.trained and inside > 0:
                found.append(inside)
        return found

    def begin(self) -> None:
        super().begin()
        for one in self.program.parameters:  # all pieces of a flat parameter get gradients together
            self.of_backward[self.unit_of(one.unit)] += not one.trained and self.unit_of(one.unit) in self.trains
        ranks = range(min(self.shards, RANKS_LOOKED_AT))
        self.parts["moments"] = 8 * max(sum(self.pieces_on(rank)) for rank in ranks) if self.steps else 0
        self.whole: set[int] = set()  # units with a flat gradient of an earlier run

    def gather(self, unit: int) -> Iterator[None]:
        if unit in self.gathered or not self.units[unit]:
            return
        self.gathered.add(unit)
        self.parts["gathered"] += self.weight_bytes(unit)
        yield from self.collects(unit)

    def on_event(self, moment: Moment) -> Iterator[None]:
        index = self.unit_of(moment.index)
        yield from super().on_event(moment)
        match moment.event:
            case "leave" if self.forward:
                if index in self.order:
                    self.order.remove(index)
                self.order.append(index)
                if not self.keeps:
                    self.free(index)
            case "forward_end":
                self.forward = False
            case "backward":
                yield from self.goes_back(index)
            case "gradient" if moment.index is not None:
                yield from self.takes(moment.index)
            case "end":
                yield from self.run_ends(self.running)
                for unit in [unit for unit in self.left if self.left[unit] > 0 and self.pieces[unit]]:
                    yield from self.reduce(unit)
                for unit in list(self.gathered) if not (self.defers and self.keeps) else ():
                    self.free(unit)

    def goes_back(self, unit: int) -> Iterator[None]:
        if unit != self.running:
            yield from self.run_ends(self.running)
            self.running = unit
        yield from self.gather(unit)
        before = self.order.index(unit) - 1
        if before >= 0:
            yield from self.gather(self.order[before])

    def takes(self, parameter: int) -> Iterator[None]:
        owner = self.owner(self.program.parameters[parameter])
        self.pieces[owner] += self.width * self.sizes[parameter]
        self.parts["gradients"] += self.width * self.sizes[parameter]
        self.left[owner] -= 1
        if not self.left[owner]:
            yield from self.reduce(owner)

    def flatten(self, unit: int) -> Iterator[None]:
        """The gradients of a run become one: pieces that it lacks are zeros."""
        flat, had = self.weight_bytes(unit), self.weight_bytes(unit) if unit in self.whole else 0
        missing = max(0, flat - (self.pieces[unit] - had))
        yield from self.within("gradients", missing + flat)
        self.parts["gradients"] += flat - self.pieces[unit]
        self.pieces[unit] = flat
        self.whole.add(unit)

    def run_ends(self, unit: int) -> Iterator[None]:
        if unit not in self.trains and unit != -1:
            self.free(unit)
        if self.pieces[unit] > (self.weight_bytes(unit) if unit in self.whole else 0):
            yield from self.flatten(unit)

    def reduce(self, unit: int) -> Iterator[None]:
        """Or keep the whole gradient up to the last micro-batch, and weights that forward does not free."""
        yield from self.flatten(unit)
        if self.defers and self.keeps:
            return
        self.free(unit)
        if self.defers:
            return
        shard = self.units[unit] // self.shards
        yield from self.sends(self.weight_bytes(unit), "gradients", self.width * shard)
        yield from self.shard(unit, 4 * shard)
        self.parts["gradients"] -= self.pieces[unit]
        self.pieces[unit] = 0
        self.whole.discard(unit)


class Fsdp2(Sharded):
    """fully_shard (torch/distributed/fsdp/_fully_shard: `_fsdp_param_group.py`, `_fsdp_collectives.py`).

    All-gather fills a buffer, from which weights are copied out. In forward, the buffer lives until the next unit's. In
    backward the next unit's is filled ahead. Gradients are reduced at the end of each run of a unit, in fp32: the input
    of the reduction lives until the next one. While it runs, a variable of `foreach_reduce` has the last gradient.

    Micro-batches before the last keep whole gradients in fp32 (`_fsdp_param.py`, `to_accumulated_grad_if_needed`): 4
    bytes a parameter, whatever the number of ranks. The first run of a unit in the last one reduces them.
    """

    grouped = True

    def owner(self, parameter: Parameter) -> int:
        return self.unit_of(parameter.group if parameter.unit is None else parameter.unit)

    def begin(self) -> None:
        super().begin()
        self.last = Counter[int]()  # elements of a unit's last parameter; the largest of another group
        for one in self.program.parameters:
            if one.trained and (one.group is None or one.elements > self.last[self.owner(one)]):
                self.last[self.owner(one)] = one.elements
        self.buffer = self.reduced = 0
        self.kept = Counter[int]()  # elements by unit of whole gradients of earlier micro-batches

    def on_forward(self) -> None:
        super().on_forward()
        self.ahead: int | None = None

    @property
    def reshards(self) -> bool:
        return self.cell.train.reshard_after_forward is not False

    def gather(self, unit: int) -> Iterator[None]:
        if unit in self.gathered or not self.units[unit]:
            return
        size = self.weight_bytes(unit)
        if self.ahead == unit:
            self.ahead = None
        else:
            self.parts["gathered"] += size
            yield from self.collects(unit)
        held, self.buffer = self.buffer, 0
        self.parts["gathered"] += size - held
        self.gathered.add(unit)
        yield
        if self.forward:
            self.buffer = size
        else:
            self.parts["gathered"] -= size

    def on_event(self, moment: Moment) -> Iterator[None]:
        index = self.unit_of(moment.index)
        yield from super().on_event(moment)
        match moment.event:
            case "leave" if self.forward:
                self.order.append(index)
                if self.reshards and index not in self.program.kept:
                    self.free(index)
            case "forward_end":
                self.forward = False
                self.parts["gathered"] -= self.buffer
                self.buffer = 0
            case "backward":
                if index != self.running:
                    if self.running != -1:  # the root's gradients are reduced at the end, all at once
                        yield from self.run_ends(self.running)
                    self.running = index
                yield from self.gather(index)
                yield from self.fetch_ahead(index)
            case "gradient" if moment.index is not None:
                yield from self.takes(moment.index)
            case "end":
                found = dict.fromkeys([*self.pieces, *self.kept])
                for unit in [self.running, *[unit for unit in found if unit != self.running]]:
                    yield from self.run_ends(unit)
                self.parts["gradients"] -= self.reduced
                self.reduced = 0
                for unit in list(self.gathered):
                    self.free(unit)
                if self.ahead is not None:
                    self.parts["gathered"] -= self.weight_bytes(self.ahead)

    def takes(self, parameter: int) -> Iterator[None]:
        owner, size = self.owner(self.program.parameters[parameter]), self.sizes[parameter]
        if self.width == 4 and self.kept[owner]:  # autograd adds it at once
            yield from self.within("gradients", self.width * size)
        else:
            self.pieces[owner] += size
            self.parts["gradients"] += self.width * size

    def fetch_ahead(self, index: int) -> Iterator[None]:
        """Fill the buffer of the unit that ran before this run; each of its runs counts."""
        while self.order and self.order[-1] != index:
            self.order.pop()
        if self.order:
            self.order.pop()
        target = self.order[-1] if self.order else None
        if target is not None and target not in self.gathered and target != self.ahead:
            self.ahead = target
            self.parts["gathered"] += self.weight_bytes(target)
            yield from self.collects(target)

    def run_ends(self, unit: int) -> Iterator[None]:
        self.free(unit)
        new, kept = self.pieces[unit], self.kept[unit]
        self.pieces[unit] = 0
        if kept:  # the new one was added to it
            self.parts["gradients"] -= self.width * new
        elif new and self.defers:
            self.kept[unit] = new
            yield from self.within("gradients", 4 * self.last[unit] if self.width == 2 else 0)
            self.parts["gradients"] += (4 - self.width) * new
        if self.defers or not (kept or new):
            return
        elements, each = kept or new, 4 if kept else self.width
        reduced = 4 * elements
        yield from self.within("gradients", reduced)
        self.parts["gradients"] += reduced - each * elements - self.reduced
        held = each * self.last[unit] if self.width == 2 else 0
        yield from self.sends(reduced, "gradients", 4 * elements // self.shards + held)
        yield from self.shard(unit, 4 * elements // self.shards)
        self.reduced, self.kept[unit] = reduced, 0
