"""The outcome of one rank: its raw samples, or how it ended."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from bench.records.base import MOST, Amount, AtLeastOne, Count, Frozen, Positive, Rank
from bench.records.cell import Regime
from bench.records.observed import Observed
from bench.records.phases import REST, SEEN_PHASES, SHOWN_PHASES, STORED_PHASES


class Memory(Frozen):
    """Memory peaks of one rank over the throughput window; the counters are reset after warm-up."""

    peak_allocated_bytes: Annotated[int, Field(ge=-MOST, le=MOST)] | None
    """CUDA: live tensors of the caching allocator. CPU: growth of the data segment, which a memory limit counts;
    negative if the attempt returned more than it took."""
    peak_reserved_bytes: Count | None
    """CUDA: blocks held by the caching allocator; null on a CPU."""
    peak_rss_bytes: Count | None
    """Peak resident memory of the process; null where the kernel cannot reset the peak."""
    capacity_bytes: AtLeastOne
    """What this rank could use: the memory limit, or the memory that was free at its start."""
    overhead_bytes: Count | None = None
    """CUDA memory outside the caching allocator, such as NCCL's and cuBLAS's. It uses capacity too; null on a CPU."""
    peak_tensor_bytes: Count | None = None
    """CPU: live tensors at the peak of a later step, with `measure.count_tensors`; null without, and on CUDA."""
    alloc_retries: Count = 0
    """Times that the caching allocator had to free its cached blocks and retry an allocation."""

    @property
    def used_bytes(self) -> int | None:
        """The peak of what the attempt needed: live tensors, and CUDA memory outside the allocator."""
        if self.peak_allocated_bytes is None:
            return None
        return self.peak_allocated_bytes + (self.overhead_bytes or 0)

    @property
    def held_bytes(self) -> int | None:
        """The peak to compare with capacity: on CUDA, the allocator's reserved memory plus the overhead outside it."""
        if self.peak_reserved_bytes is None:
            return self.peak_allocated_bytes
        return self.peak_reserved_bytes + (self.overhead_bytes or 0)


class Metered(Frozen):
    """What meters counted for one rank over the throughput window."""

    samples: AtLeastOne
    """Of this rank in that window."""
    amounts: dict[str, Amount]
    """By meter. ``joules``: of its GPU, or on a CPU its share of all processors of the node."""

    def per_sample(self, meter: str) -> float | None:
        """None where the meter could not be read."""
        amount = self.amounts.get(meter)
        return None if amount is None else amount / self.samples


class SampleSizes(Frozen):
    """How many values, in all their tensors, samples and batches hold. Where samples differ in size, steps with the
    largest ones follow the throughput window, and memory peaks include them."""

    samples: AtLeastOne | None = None
    """In the data set. null, as the next three: nothing was looked at, as the workload itself names its largest batch.
    """
    scanned: AtLeastOne | None = None
    """Of these, looked at within some seconds."""
    smallest: Count | None = None
    largest: Count | None = None
    """Values of a sample."""
    largest_batch: Count | None = None
    """Values of the batch of the largest samples; null if all samples have one shape."""
    largest_measured_batch: Count | None = None
    """Most values of a batch in the throughput window; null in the same case."""


class Tokens(Frozen):
    """Tokens that one rank trained in the throughput window, counted in the batches of its steps."""

    samples: AtLeastOne
    """Of these steps."""
    trained: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Of each of their batches, without padding."""
    places: tuple[AtLeastOne, ...] | None = None
    """Of each of their batches, with padding. null: not known."""
    longest: Count | None = None
    """Tokens of the longest sample. null: the batches say how many they hold together."""

    @property
    def padding_share(self) -> float | None:
        """Of all places."""
        return None if self.places is None else 1 - sum(self.trained) / sum(self.places)


class Traffic(Frozen):
    """The collectives of one kind that one rank issued in one step, from torch's flight recorder."""

    library: str
    """gloo or nccl."""
    operation: str
    """all_reduce, all_gather, reduce_scatter, broadcast, and so on: what the process group really ran. gloo runs a
    reduce-scatter as an all-reduce."""
    dtype: str
    """The recorder's name, such as BFloat16."""
    group_size: AtLeastOne
    """Ranks in the process group."""
    calls: AtLeastOne
    payload_bytes: Count
    """All calls together; of each, the whole tensor: what an all-gather returns, what a reduce-scatter takes."""


class Work(Frozen):
    """What one sample takes, as its workload states it; of samples of many lengths, a mean over those of the throughput
    window. null is unknown."""

    step_flops: AtLeastOne | None = None
    """Floating-point operations of forward, backward and recomputation, none for padding; a multiply-add is two."""
    recomputed_flops: Count | None = None
    """Those of them that repeat a part of forward, for gradient checkpointing."""
    tokens_per_sample: AtLeastOne | None = None

    @model_validator(mode="after")
    def _a_part_of_the_step(self) -> Self:
        if (self.recomputed_flops or 0) >= (self.step_flops or 1):
            raise ValueError(f"{self.recomputed_flops} of {self.step_flops} operations are recomputed")
        return self


MUCH = 0.10
"""Share of the trained parameters without a gradient, or of all parameters in modules that do not run, above which a
step is no longer that of the model."""


GROWN = 0.02
"""Share of its memory peak by which a step of the second half of the window raises it where later ones may, too."""


class Coverage(Frozen):
    """What the steps of the warm-up used of the model and of its samples, on all ranks together. Names are those of the
    largest modules, or of single parameters, at most a few."""

    parameters: AtLeastOne
    """Scalars in the whole model, as in `Regime`."""
    trainable_parameters: Count
    """Those of them that require a gradient."""
    without_gradient: Count | None = None
    """Those of the trainable ones that got no gradient, not even zero. null: not observed, as under torch.compile."""
    without_gradient_names: tuple[str, ...] = ()
    not_run: Count | None = None
    """Scalars in modules whose forward never ran, frozen ones, too."""
    not_run_names: tuple[str, ...] = ()
    not_routed: Count = 0
    """Scalars in modules that no sample reached, such as experts: others like them ran in some steps only. They are in
    none of the counts above."""
    dropped_keys: dict[str, str] = Field(default_factory=dict)
    """Keys of the samples that neither forward nor a loss received, with the dtype or the type of their values."""

    @property
    def without_gradient_share(self) -> float:
        """Of the trainable parameters."""
        return (self.without_gradient or 0) / max(self.trainable_parameters, 1)

    @property
    def not_run_share(self) -> float:
        """Of all parameters."""
        return (self.not_run or 0) / self.parameters


class Compilation(Frozen):
    """What torch.compile did in one rank, up to the end of warm-up."""

    compile_s: Amount
    """Seconds in the compiler, forward and backward; part of the warm-up, and of no measured step."""
    graphs: Count
    graph_breaks: dict[str, Count]
    """How often each reason split a graph."""
    graphs_while_measured: Count = 0
    """Graphs that were compiled later: the steps that waited for them are slower than others."""


class Checkpoint(Frozen):
    """One checkpoint, saved and loaded by all ranks together."""

    save_s: Amount
    """Seconds until every rank had saved. What the system still had to write to the disk does not count."""
    load_s: Amount
    """Seconds until every rank had loaded; the system may have kept the files in memory."""
    stored_bytes: Count
    """On the disk, of all ranks together."""
    next_losses: Annotated[tuple[float, ...], Field(min_length=1)]
    """Losses of the steps after saving."""
    resumed_losses: tuple[float, ...]
    """Losses of the same steps after loading."""

    @model_validator(mode="after")
    def _the_same_steps(self) -> Self:
        if len(self.next_losses) != len(self.resumed_losses):
            raise ValueError(f"{len(self.next_losses)} steps after saving, {len(self.resumed_losses)} after loading")
        return self

    @property
    def apart(self) -> float:
        """The largest relative difference between a loss after loading and the one that it should repeat; infinite
        where one of them is not finite."""
        if not all(map(math.isfinite, (*self.next_losses, *self.resumed_losses))):
            return math.inf
        pairs = zip(self.next_losses, self.resumed_losses, strict=True)
        return max(abs(one - other) / max(abs(one), abs(other), 1e-30) for one, other in pairs)


class RankOk(Frozen):
    """One rank's raw samples."""

    kind: Literal["ok"] = "ok"
    rank: Rank
    node: str | None = None
    """Where it ran, by the scheduler's name; null if all ranks ran on one node."""
    regime: Regime
    memory: Memory
    step_times_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Step times of the throughput window, each from the end of the step before it."""
    host_times_s: tuple[Positive, ...] | None = None
    """How long the host was busy or blocked until each of these steps was queued. While the device's queue is full, the
    host waits for room in it: only times well below the step's say that the host keeps up. null: on a CPU, which
    computes the steps."""
    step_peaks_bytes: tuple[Count, ...] | None = None
    """The memory peak since the warm-up at the end of each of these steps: allocated on CUDA, resident on a CPU. null:
    it cannot be read."""
    skipped_steps: Count | None = None
    """Of these steps, those that left the weights as they were, as their gradients overflowed. null: there is no
    optimizer, or it is a script's, see `Observed`."""
    phase_times_s: dict[str, Annotated[tuple[Amount, ...], Field(min_length=1)]]
    """Times in the phase window: seconds of each step, by STORED_PHASES; of an observed script, by SEEN_PHASES and the
    total. Empty without a phase window."""
    own_work_s: dict[str, tuple[Amount, ...]] = Field(default_factory=dict)
    """Seconds of each step of the phase window in which this rank worked and did not wait for a collective, by phase.
    Without the phases where this is unknown: those with collectives on NCCL. Empty for a single process."""
    collective_times_s: tuple[Amount, ...] | None = None
    """Seconds of each step of the phase window that its collectives took on the device, by NCCL's flight recorder:
    their own time, and the wait for other ranks. null: unknown, and with gloo."""
    losses: tuple[float, ...]
    """Mean over ranks for every step after warm-up: the throughput window, then the phase window. Empty: not known, as
    of an observed script."""
    warmup_losses: tuple[float, ...]
    """Losses of all steps of the warm-up. The first is computed with the initial weights, so it is the same on every
    backend."""
    metrics: dict[str, tuple[float, ...]]
    """The other scalars of the workload, with as many values as ``losses``."""
    setup_s: Amount
    warmup_s: Amount
    threads: Count
    """CPU threads that torch's operators use in this rank."""
    cores: Count | None = None
    """CPU cores that this rank may run on; null: not known."""
    cpus: str | None = None
    """Which ones, as Linux lists them: ``0-15,64-79``."""
    numa_node: Count | None = None
    """The NUMA node of all of them; null: they are of several, or it is not known."""
    traffic: tuple[Traffic, ...] | None = None
    """The collectives of the last step of the phase window; null if the recorder did not hold that whole step, and
    without a phase window."""
    units: tuple[str, ...]
    """Class names of the modules that are sharded or compiled, each as one; empty if the model is one unit."""
    unit_parameters: dict[Count, Count] | None = None
    """Parameters of the workload's units by how often a step runs a unit's forward, without recomputation. Under FSDP2,
    also of other groups that free their weights after forward. The rest of the model is in no unit. null where units
    are compiled, or run a different number of times in each step."""
    regathered: dict[Count, Count] | None = None
    """Parameters of these units by how often FSDP gathers a unit for backward: for each of its runs that backward
    passes, and for that which precedes such a run, as it is fetched ahead. null as ``unit_parameters``."""
    coverage: Coverage
    work: Work | None = None
    tokens: Tokens | None = None
    """null: the batches do not say how many they hold."""
    metered: Metered | None = None
    sizes: SampleSizes | None = None
    """null if the workload says that its samples have one size, and names no batch."""
    compilation: Compilation | None = None
    """null if nothing is compiled."""
    checkpoint: Checkpoint | None = None
    """null unless the cell asks for it."""
    observed: Observed | None = None
    """What a script did. null: bench's own runner made the steps."""

    @field_validator("phase_times_s")
    @classmethod
    def _all_phases(cls, times_s: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        seen = {REST, "total"} <= set(times_s) <= {*SEEN_PHASES, "total"}
        if times_s and not seen and set(times_s) != set(STORED_PHASES):
            raise ValueError("phases are missing or unknown")
        if len({len(samples) for samples in times_s.values()}) > 1:
            raise ValueError("phases have different numbers of steps")
        if not all(total > 0 for total in times_s.get("total", ())):
            raise ValueError("a step took no time")
        return times_s

    @field_validator("own_work_s")
    @classmethod
    def _known_phases(cls, own_s: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        if set(own_s) - set(SHOWN_PHASES):
            raise ValueError("phases are unknown")
        return own_s

    @property
    def grew_at(self) -> int | None:
        """The last measured step, from 1 on, at which the memory peak was still growing, late: see `GROWN`."""
        peaks = self.step_peaks_bytes or ()
        later = range(len(peaks) // 2, len(peaks)) if len(peaks) > 3 else ()
        grown = [step for step in later if peaks[step] - peaks[step - 1] > GROWN * peaks[step]]
        return grown[-1] + 1 if grown else None

    @property
    def n_phase_steps(self) -> int:
        return len(self.phase_times_s.get("total", ()))

    @model_validator(mode="after")
    def _a_value_per_step(self) -> Self:
        steps = len(self.step_times_s) + self.n_phase_steps
        for name, values in {"losses": self.losses, **self.metrics}.items():
            if (values or self.observed is None) and len(values) != steps:
                raise ValueError(f"{name} has values for {len(values)} steps, but times for {steps}")
        if self.step_peaks_bytes is not None and len(self.step_peaks_bytes) != len(self.step_times_s):
            raise ValueError("step_peaks_bytes and step_times_s have different numbers of steps")
        if self.host_times_s is not None and len(self.host_times_s) != len(self.step_times_s):
            raise ValueError("host_times_s and step_times_s have different numbers of steps")
        if any(len(samples) != self.n_phase_steps for samples in self.own_work_s.values()):
            raise ValueError("own_work_s and phase_times_s have different numbers of steps")
        if self.collective_times_s is not None and len(self.collective_times_s) != self.n_phase_steps:
            raise ValueError("collective_times_s and phase_times_s have different numbers of steps")
        return self


class RankWalked(Frozen):
    """This rank has finished a walk over batches; its observations are in a separate file."""

    kind: Literal["walked"] = "walked"
    rank: Rank


class Footprint(Frozen):
    """One batch of a walk, as one rank saw it."""

    batch_per_rank: AtLeastOne
    memory: Memory
    step_time_s: Positive
    """Of the last step at this batch."""
    samples: AtLeastOne
    """Of this step."""


class Walked(Frozen):
    """`walk<N>.json`: the batches of one rank so far; rewritten after every batch."""

    rank: int
    footprints: tuple[Footprint, ...]


class RankAudited(Frozen):
    """This rank has finished an audit; its findings are in a separate file."""

    kind: Literal["audited"] = "audited"
    rank: Rank


class RankOom(Frozen):
    """This rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: Rank
    phase: str
    message: str
    at: float
    """Seconds since the epoch."""
    source: str | None = None
    """What reported it: see `Kind` in bench/diagnosis/oom_words.py; `kernel`: the out-of-memory killer; `abort` and
    `cuda_abort`: native code; `loader`: the dynamic loader."""
    bytes_asked: Count | None = None


class RankError(Frozen):
    """This rank raised an exception, or exited without a result."""

    kind: Literal["error"] = "error"
    rank: Rank
    phase: str
    error: str
    """``Type: message``."""
    traceback: str
    at: float
    place: str | None = None
    """Place in the workload's code."""


class RankKilled(Frozen):
    """A signal ended this rank's process, as observed by its server."""

    kind: Literal["killed"] = "killed"
    rank: Rank
    phase: str
    signal: str
    at: float
    by_bench: str | None = None
    """Why bench itself ended it: another rank had failed, or the time limit was reached."""
    place: str | None = None
    """Place in the workload's code, if the rank could still report it."""
    last_words: str | None = None
    """The last lines of its log."""


RankOutcome = Annotated[
    RankOk | RankWalked | RankAudited | RankOom | RankError | RankKilled, Field(discriminator="kind")
]
