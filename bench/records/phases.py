"""The stages of an attempt, and the phases of a step."""

from enum import StrEnum
from typing import NamedTuple


class Stage(StrEnum):
    """What an attempt is doing. Members are in the order of an attempt, which leaves out those that it has no use for.

    Beats and records store a stage in a field called `phase`.
    """

    START = "start"
    """Before the first beat, and while the workload is imported."""
    COMPILE = "compile"
    """DeepSpeed builds an extension: a program at work that sends no beats."""
    JOIN = "join"
    """Connects to the other ranks."""
    SETUP = "setup"
    """Builds the model, the optimizer and the loader."""
    AUDIT = "audit"
    WALK = "walk"
    WARMUP = "warmup"
    MEASURE = "measure"
    """The throughput window."""
    LARGEST = "largest"
    """A step with the largest samples, where samples differ in size."""
    PHASES = "phases"
    """The phase window."""
    CHECKPOINT = "checkpoint"
    """Saves and loads a checkpoint."""
    DONE = "done"
    """Writes the result, and ends."""


class Phase(NamedTuple):
    """A part of a training step, timed in the phase window."""

    name: str
    meaning: str
    backward_step: bool = False
    """Whether it counts in `backward_step`."""


PHASES = (
    Phase("dataload_wait", "wait for the next batch on the device"),
    Phase("forward", "forward pass and loss"),
    Phase("bwd", "backward pass, with the gradient communication that overlaps it", backward_step=True),
    Phase("unscale_clip", "clip the gradients", backward_step=True),
    Phase("optim_step", "update the weights", backward_step=True),
    Phase("zero_grad_sched", "reset the gradients, advance the scheduler", backward_step=True),
    Phase("sync_gather", "gather the losses of all ranks"),
)
"""The phases of a step, in order. To add one, add it here and call ``begin_phase`` in `bench/runner/steps.py`."""

PHASE_NAMES = tuple(phase.name for phase in PHASES)
BACKWARD_STEP = tuple(phase.name for phase in PHASES if phase.backward_step)
"""Their sum is stored too, as `backward_step`: DeepSpeed's engine divides this part of a step differently. It is not
printed beside its parts."""
REST = "rest"
"""All of an observed script's step that is in none of the phases that hooks see: resetting gradients, logging."""
SEEN_PHASES = ("dataload_wait", "forward", "bwd", "optim_step", REST)
"""Those of an observed script, as far as it has them; they sum to the total. See bench/observe/phases.py."""
SHOWN_PHASES = (*PHASE_NAMES, REST)
STORED_PHASES = (*PHASE_NAMES, "total", "backward_step")
"""Keys of `phase_times_s`. `total` is timed on its own, not summed."""
