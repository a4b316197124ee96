"""A training script of the user: the command that starts it, the names of what it reports, and how it ended."""

import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import Field, JsonValue

from bench.records.base import Frozen, written

MICRO_BATCHES = "gradient_accumulation_steps"
"""What accelerate, DeepSpeed and transformers call the number of micro-batches of an optimizer step."""
CALLED_MICRO_BATCHES = frozenset(
    {"gradient_accumulation_steps", "gradient_accumulation", "grad_accumulation_steps", "grad_accumulation"}
    | {"grad_accum_steps", "grad_accum", "accumulation_steps", "accum_steps", "accumulate_grad_batches"}
    | {"num_accumulation_steps", "accumulation", "accum", "accumulate", "gas", "ga"}
    | {"grad_acc", "grad_acc_steps", "acc_steps", "n_accum", "num_accum"}
)
"""What scripts call the number of micro-batches whose gradients add up to one optimizer step."""
WORLDS = ("nproc_per_node", "num_processes", "num_gpus", "devices")
"""What launchers and trainers call the number of processes on a node."""
IN_LOG = "regex:"
"""Before a pattern that finds a figure in a script's output."""
NO_BACKEND = "script"
"""The backend of a script that is handed none: it chooses for itself."""


class Script(Frozen):
    """What bench knows of a script. It is a part of the cell: another command is another measurement."""

    command: tuple[str, ...]
    """The program and its arguments, with placeholders such as ``{batch}``; no shell reads them."""
    result: dict[str, str] = Field(default_factory=dict)
    """The script's key of each figure, by the name that `bench import` has for it. Empty: it uses these names."""
    units: tuple[str, ...] = ()
    """Class names of the modules that FSDP shards, each as one unit."""

    @property
    def is_observed(self) -> bool:
        """Whether bench watches it from outside, as it hands over no figures."""
        return not self.result and not self.uses("out")

    @property
    def is_read_from_log(self) -> bool:
        """Whether its figures are found in its output."""
        return bool(self.result) and all(key.startswith(IN_LOG) for key in self.result.values())

    @property
    def num_processes(self) -> int | None:
        """How many processes the options of a launcher ask for; None where the command does not say."""
        said = self._said(WORLDS)
        return said[-1][1] if said else None

    def uses(self, *names: str) -> bool:
        """Whether any of these placeholders is in the command."""
        return not self.placeholders.isdisjoint(names)

    def micro_batches(self, options: Mapping[str, JsonValue]) -> tuple[str, JsonValue] | None:
        """How many micro-batches make one optimizer step: the placeholder or the option of the command that says it,
        and its value. None where nothing does: the script's own default is not known. Of several options, the last one
        counts, as for argparse.
        """
        if named := next((name for name in options if name.lower() in CALLED_MICRO_BATCHES), None):
            return named, options[named]
        said = self._said(CALLED_MICRO_BATCHES)
        return said[-1] if said else None

    def _said(self, names: Collection[str]) -> list[tuple[str, int]]:
        """The options of the command with one of these names, and their whole numbers.

        An option may have the path of a config's field before its name (``trainer.accumulate_grad_batches=4``), and
        stand in a command for a shell.
        """
        words = [part for word in self.command for part in re.split(r"[=\s]+", word.strip())]
        return [
            (word, int(value.strip("'\"+")))
            for word, value in pairwise(words)
            if word.lstrip("-+").replace("-", "_").lower().rpartition(".")[2] in names
            if value.strip("'\"+").isdecimal()
        ]

    @property
    def step_placeholders(self) -> tuple[str, ...]:
        """The placeholders for how many micro-batches make one optimizer step."""
        return tuple(sorted(name for name in self.placeholders if name.lower() in CALLED_MICRO_BATCHES))

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(name for word in self.command for name in placeholders(word))

    def filled(self, values: Mapping[str, JsonValue]) -> list[str]:
        """The command with the values of its placeholders: texts as they are, all else as JSON."""
        texts = {name: written(value) for name, value in values.items()}
        return [word.format_map(texts) for word in self.command]


@dataclass(frozen=True, kw_only=True)
class ScriptEnd:
    """How a script ended."""

    how: str | None
    """``exit code 3``, ``killed by SIGSEGV``; None for exit code 0, and where bench ended it."""
    signal: str | None = None
    """The signal that ended it, or one of its ranks."""
    rank: int | None = None
    """The rank that ended first, where the log of a launcher names it."""
    cancelled: str | None = None
    """Why bench ended it, if it did: silence, or the time limit."""
    limited: bool = False
    """Whether bench limited the memory of its processes."""
    log: str = field(default="", repr=False)
    """The end of its output."""

    @property
    def finished(self) -> bool:
        return self.how is None and self.cancelled is None


def placeholders(word: str) -> Sequence[str]:
    """The names in braces in one word of a command; ``{{`` and ``}}`` stand for the braces themselves.

    Raises:
        ValueError: a brace has no partner, or holds no plain name.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(word):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError(f"{{{name}}} is not a placeholder")
        names.append(name)
    return names
