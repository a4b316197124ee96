"""What one training step of a model computes and keeps, traced without a device; see bench/runner/program.py."""

from typing import Annotated, Literal

from pydantic import Field

from bench.records.base import AtLeastOne, Count, Device, Frozen

Event = Literal["enter", "leave", "forward_end", "backward", "gradient", "end"]
"""``enter`` and ``leave``: a unit's forward, also where backward repeats it. ``forward_end``: forward is over.
``backward``: the gradient of a unit's output is known. ``gradient``: that of a parameter is complete. ``end``: backward
is over."""


class Parameter(Frozen):
    """One parameter."""

    elements: Count
    unit: Count | None
    """The unit that owns it; null: none does."""
    trained: bool
    group: Count | None = None
    """Where no unit owns it, the group that FSDP2 makes of it: embeddings, or last norm and head. null: the root."""


class Moment(Frozen):
    """One event, and the memory of activations around it. Parameters, finished gradients and inputs do not count."""

    event: Event
    index: Count | None
    """Of the unit, or of the parameter of a ``gradient``. After the units, FSDP2's other groups have theirs."""
    peak_bytes: tuple[Count, ...]
    """The largest sum of live tensors since the event before, for each of the program's batches."""
    live_bytes: tuple[Count, ...]
    """Of live tensors at the event."""


class Program(Frozen):
    """One step, traced at a few batches. The same events follow each other at each of them."""

    device: Device
    """Whose kernels are assumed."""
    batches: Annotated[tuple[AtLeastOne, ...], Field(min_length=2)]
    parameters: tuple[Parameter, ...]
    """Each once, in the order of the model."""
    weights_bytes: Literal[2, 4]
    """Of one weight while it computes."""
    buffers_bytes: Count
    units: Count
    kept: tuple[Count, ...] = ()
    """FSDP2's groups that do not free their weights after forward, by index."""
    moments: tuple[Moment, ...]
    input_bytes: Count
    """Of one sample."""
    flops: dict[str, tuple[Count, ...]]
    """Of matrix products, convolutions and attention, by dtype, for each batch."""
    moved_bytes: tuple[Count, ...]
    """What the operators of forward and backward read and write, for each batch."""
    operators: Count
    """Calls of operators in forward and backward."""
    assumed: Count = 0
    """Questions about values that were answered with yes, as there are no values."""
    flat: "Program | None" = None
    """The same step where all parameters of a unit get a gradient if one does, as in FSDP1's flat parameters; null
    where that is no other step."""
    seconds: float
    """That tracing took."""
