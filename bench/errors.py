"""The error for bad input: the place, the field, the wrong value, what is allowed, and what to do."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

CUT = " … "
"""Replaces what a shortened message leaves out."""
MORE = " …"
"""Ends a text whose end is left out."""


class InputError(Exception):
    """Bad input, or a disk that cannot be written. The command line prints it as one message and exits with 2.

    Args:
        problem: one sentence that names the value, e.g. ``'fspd' is not a backend``.
        where: the file and line, or the option, e.g. ``matrices/x.yaml:7`` or ``--axis``.
        field: the dotted path of the field, e.g. ``matrix.backend[1]``.
        allowed: what would have been accepted, in words or as the values themselves.
        fix: what to do about it, when ``allowed`` does not say it already.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        field: str | None = None,
        allowed: Iterable[str] | str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem = problem
        self.where = where
        self.field = field
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else ", ".join(allowed)
        self.fix = fix
        super().__init__(problem)

    def __str__(self) -> str:
        limits = ((self.where, 240), (self.field, 160), (self.problem, 480))
        lines = [": ".join(one_line(part, limit) for part, limit in limits if part)]
        allowed = [f"  allowed: {one_line(self.allowed, 960)}"] if self.allowed else []
        fix = [f"  {one_line(self.fix, 480)}"] if self.fix else []
        # A name that the user meant comes before a list that may be long.
        lines += [*fix, *allowed] if (self.fix or "").startswith("did you mean") else [*allowed, *fix]
        return "\n".join(lines)


class InputErrors(InputError):
    """Everything that is wrong with an input, told at once. Errors that differ only in their place are told once."""

    MOST = 20

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = errors
        first = errors[0]
        super().__init__(first.problem, where=first.where, field=first.field, allowed=first.allowed, fix=first.fix)

    def __str__(self) -> str:
        alike: dict[tuple[str | None, ...], list[InputError]] = {}
        for error in self.errors:
            alike.setdefault((error.field, error.problem, error.allowed, error.fix), []).append(error)
        told = [
            InputError(
                first.problem + (f" (and in {len(more)} more places)" if more else ""),
                where=first.where,
                field=first.field,
                allowed=first.allowed,
                fix=first.fix,
            )
            for first, *more in alike.values()
        ]
        left = [f"and {len(told) - self.MOST} more problems"] if len(told) > self.MOST else []
        return "\n".join([*map(str, told[: self.MOST]), *left])


class WorkloadError(InputError):
    """A workload that does not keep to its protocol: every attempt would fail in the same way."""


class SamplesError(WorkloadError):
    """Samples that cannot become a batch. A batch of one sample always can, so an attempt with it proves nothing."""


def one_line(text: str, limit: int | None = None) -> str:
    """``text`` on one line, with control characters escaped: a terminal would obey them.

    A text longer than ``limit`` keeps its beginning and its end, because a path's line number comes last. It is cut
    between words; only a single word that is too long is cut itself.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    if limit is None or len(line) <= limit:
        return line
    return _head(line, limit - limit // 3 - len(CUT)) + CUT + _tail(line, limit // 3)


def beginning(text: str, limit: int) -> str:
    """``text`` on one line; one that is longer than ``limit`` ends after a whole word, with `MORE`."""
    line = one_line(text)
    return line if len(line) <= limit else _head(line, limit - len(MORE)).rstrip(" ,;:") + MORE


def _head(line: str, room: int) -> str:
    """The words at the beginning that fit into ``room`` characters."""
    words = line[: room + 1].rpartition(" ")[0]
    return words if len(words) > room // 3 else line[:room]


def _tail(line: str, room: int) -> str:
    """The words at the end that fit into ``room`` characters."""
    words = line[-room - 1 :].partition(" ")[2]
    return words if len(words) > room // 3 else line[-room:]


ELSEWHERE = {
    "gradient_checkpointing": "grad_ckpt",
    "activation_checkpointing": "grad_ckpt",
    "attn_implementation": "attention",
    "per_device_train_batch_size": "batch",
    "train_micro_batch_size_per_gpu": "batch",
    "micro_batch_size": "batch",
    "nproc_per_node": "num_processes",
    "world_size": "num_processes",
    "num_gpus": "num_processes",
}
"""What transformers, DeepSpeed, Megatron and torchrun call a field, and what bench calls it."""


def near_miss(value: object, allowed: Iterable[str]) -> str | None:
    """``did you mean 'fsdp'?`` when ``value`` is close to one of ``allowed``, or one begins with the other."""
    known = list(allowed)
    if ELSEWHERE.get(str(value)) in known:
        return f"did you mean {ELSEWHERE[str(value)]!r}?"
    said, names = str(value).lower(), {name.lower(): name for name in known}
    begun = [name for name in names if name.startswith(said)] if len(said) > 2 else []
    begun = begun or [name for name in names if len(name) > 3 and said.startswith(name)]
    close = get_close_matches(said, begun or names, n=1, cutoff=0.3 if begun else 0.6)
    return f"did you mean {names[close[0]]!r}?" if close else None
