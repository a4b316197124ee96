"""What a user did wrong, said once: where, which field, what it was, what is allowed, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """Bad input. The command line prints it as one message and exits with 2; nothing was launched.

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
        lines = [": ".join(part for part in (self.where, self.field, self.problem) if part)]
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.fix:
            lines.append(f"  {self.fix}")
        return "\n".join(lines)


def near_miss(value: object, allowed: Iterable[str]) -> str | None:
    """``did you mean 'fsdp'?`` when ``value`` is close to one of ``allowed``, else None."""
    close = get_close_matches(str(value), list(allowed), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None
