"""`bench audit params`: which parameters get no gradient, and whether `find_unused_parameters` can be off."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pydantic import Field

from bench.audit import unfinished_in_words
from bench.records.base import Frozen
from bench.records.outcome import Failed, Hang, Oom
from bench.records.rank_outcome import MUCH
from bench.units import amount, counted, percent

State = Literal["UNUSED", "ZERO-GRAD", "FROZEN", "USED"]


class Parameter(Frozen):
    """One parameter. A shared parameter has the first of its names."""

    name: str
    elements: int
    requires_grad: bool
    unused_in: tuple[int, ...]
    """Batches in which backward did not reach it."""
    zero_in: tuple[int, ...]
    """Batches in which backward reached it, but its whole gradient was zero."""


class Looked(Frozen):
    """`audit0.json`: every parameter of the model, in order, after a number of batches."""

    rank: int
    batches: int
    parameters: tuple[Parameter, ...]
    dropped_keys: dict[str, str] = Field(default_factory=dict)
    """As in `Coverage`."""

    def state(self, parameter: Parameter) -> State:
        if not parameter.requires_grad:
            return "FROZEN"
        if parameter.unused_in:
            return "UNUSED"
        return "ZERO-GRAD" if len(parameter.zero_in) == self.batches else "USED"


class Group(Frozen):
    """Parameters with the same state: all of a module, or a single one."""

    name: str
    """``vision.*``, or the name of a parameter."""
    state: State
    batches: int
    """Number of batches in which they had this state."""
    tensors: int
    elements: int
    ddp_indices: tuple[int, ...]
    """Their indices in DDP's error message, which counts the parameters that require a gradient."""


class ParamsVerdict(Frozen):
    good: bool
    says: str
    """One sentence."""
    batches: int
    """Number of batches checked."""
    groups: tuple[Group, ...]
    """UNUSED first, then ZERO-GRAD and FROZEN, each in the model's order. USED ones are left out."""


def judge(
    looked: Looked | None,
    *,
    of_ddp: bool,
    find_unused: bool,
    allow_unused: bool,
    ended: Oom | Hang | Failed | None,
) -> ParamsVerdict:
    """Whether `find_unused_parameters` can be off, and whether a row of the cell would be invalid.

    Args:
        of_ddp: whether the cell's backend is DDP. Only DDP uses the setting.
        find_unused: whether the cell has it on.
        allow_unused: the same.
        ended: the outcome of the audit if it did not finish.
    """
    if looked is None or ended is not None:
        why = unfinished_in_words(ended) if ended is not None else "it left no record"
        return ParamsVerdict(good=False, says=f"the audit did not finish: {why}", batches=0, groups=())
    order: tuple[State, ...] = ("UNUSED", "ZERO-GRAD", "FROZEN")
    groups = sorted((g for g in group(looked) if g.state in order), key=lambda g: order.index(g.state))
    unused = [g for g in groups if g.state == "UNUSED"]
    batches = f"{looked.batches} batch" + "es" * (looked.batches > 1)
    if not unused:
        do = "can be turned off, which saves a search of the graph in every step" if find_unused else "can stay off"
        every = "every trained parameter" if any(g.state == "FROZEN" for g in groups) else "every parameter"
        says = f"backward reaches {every} in {batches}: find_unused_parameters {do}"
        return ParamsVerdict(good=True, says=says, batches=looked.batches, groups=tuple(groups))
    fails = of_ddp and not find_unused
    if not of_ddp:
        do = "they are not trained, and ddp needs find_unused_parameters on"
        if any(g.batches < looked.batches for g in unused):
            do = (
                "ranks with different samples may issue different collectives (check with bench audit collectives);"
                " ddp needs find_unused_parameters on"
            )
    elif find_unused:
        do = "find_unused_parameters must stay on"
    else:
        do = "DDP will fail or hang: freeze them, leave them out of the model, or set train.find_unused_parameters=true"
    never = sum(g.elements for g in unused if g.batches == looked.batches)
    share = never / max(1, sum(one.elements for one in looked.parameters if one.requires_grad))
    invalid = share > MUCH and not allow_unused
    if share > MUCH:
        but = "would be invalid without train.allow_unused" if allow_unused else "are invalid"
        do = f"{percent(share)} of the trained parameters get no gradient, so rows of this cell {but}; {do}"
    if looked.dropped_keys:
        do += f"; forward takes no {', '.join(looked.dropped_keys)}, which the samples hold"
    says = f"backward does not reach {_sum(unused)} {_when(unused, looked.batches)}: {do}"
    return ParamsVerdict(good=not fails and not invalid, says=says, batches=looked.batches, groups=tuple(groups))


def _sum(groups: Sequence[Group]) -> str:
    tensors, elements = sum(g.tensors for g in groups), sum(g.elements for g in groups)
    return f"{counted(tensors, 'tensor')} ({amount(elements)} parameters)"


def _when(groups: Sequence[Group], batches: int) -> str:
    if batches == 1:
        return "in 1 batch"
    always = [g.batches == batches for g in groups]
    return f"in {'any' if all(always) else 'some or all' if any(always) else 'some'} of {batches} batches"


def group(looked: Looked) -> tuple[Group, ...]:
    """All parameters, grouped by the largest modules whose parameters have the same state."""
    trained = [parameter.name for parameter in looked.parameters if parameter.requires_grad]
    indices = {name: index for index, name in enumerate(trained)}
    return tuple(
        Group(
            name=name,
            state=looked.state(members[0]),
            batches=len(members[0].unused_in) if looked.state(members[0]) == "UNUSED" else looked.batches,
            tensors=len(members),
            elements=sum(one.elements for one in members),
            ddp_indices=tuple(indices[one.name] for one in members if one.name in indices),
        )
        for name, members in _alike(looked, "", looked.parameters)
    )


def _alike(looked: Looked, prefix: str, members: Sequence[Parameter]) -> Iterator[tuple[str, Sequence[Parameter]]]:
    if len(members) == 1:
        yield members[0].name, members
    elif len({(looked.state(one), len(one.unused_in)) for one in members}) == 1:
        yield f"{prefix}*", members
    else:
        for part, inner in _by_part(prefix, members):
            yield from _alike(looked, part, inner)


def _by_part(prefix: str, members: Iterable[Parameter]) -> Iterator[tuple[str, list[Parameter]]]:
    """``members`` grouped by the part of their names that follows ``prefix``."""
    parts: dict[str, list[Parameter]] = {}
    for one in members:
        part, dot, _ = one.name[len(prefix) :].partition(".")
        parts.setdefault(prefix + part + dot, []).append(one)
    yield from parts.items()
