"""torch.compile as a cell requests it, and what the compiler did in this process."""

from collections import Counter

from torch import nn
from torch._dynamo.utils import calculate_time_spent, counters

from bench.errors import InputError
from bench.records.cell import Train
from bench.records.rank_outcome import Compilation


def compile_as_requested(train: Train, model: nn.Module, units: tuple[str, ...]) -> None:
    """Compile each unit, or the whole model, after sharding; the compiler itself runs at the first step.

    Compiled units leave the hooks of the outer model outside their graphs.

    Raises:
        InputError: units are requested, and there is none. The model would run uncompiled.
    """
    match train.compile:
        case "unit" if not units:
            raise InputError(
                "compile: unit has nothing to compile: the workload has no units",
                field="train.compile",
                fix="name the classes of the model's layers in the workload's units, or use compile: model",
            )
        case "unit":
            for module in model.modules():
                # fully_shard gives a unit a new class, derived from its own.
                if {kind.__name__ for kind in type(module).__mro__} & set(units):
                    module.compile()
        case "model":
            model.compile()


def graphs() -> int:
    """How many graphs the compiler has made in this process so far, also of what a model compiles itself."""
    return counters["stats"]["unique_graphs"]


def compilation() -> Compilation:
    """What the compiler has done in this process so far."""
    breaks = Counter[str]()
    for reason, count in counters["graph_break"].items():
        breaks[reason.strip().partition("\n")[0]] += count  # hints and paths follow
    return Compilation(
        compile_s=calculate_time_spent()["total_wall_time"],
        graphs=graphs(),
        graph_breaks=dict(breaks),
    )
