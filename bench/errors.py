"""Bad input as one message: where, which field, what it was, what is allowed, what to do."""

from collections.abc import Iterable


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
        limits = ((self.where, 240), (self.field, 160), (self.problem, 480))
        lines = [": ".join(one_line(part, limit) for part, limit in limits if part)]
        if self.allowed:
            lines.append(f"  allowed: {one_line(self.allowed, 960)}")
        if self.fix:
            lines.append(f"  {one_line(self.fix, 480)}")
        return "\n".join(lines)


def one_line(text: str, limit: int | None = None) -> str:
    """``text`` on one line, control characters escaped.

    Args:
        limit: characters at most. A longer text keeps both ends, cut between words, because a path or an error often
            says most at its end.
    """
    joined = " ".join(part for line in text.splitlines() if (part := line.strip()))
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in joined)
    if limit is None or len(shown) <= limit:
        return shown
    gap = " ... "
    tail_length = limit // 3
    head_length = limit - tail_length - len(gap)
    return f"{_whole_words(shown, head_length)}{gap}{_whole_words(shown[::-1], tail_length)[::-1]}"


def _whole_words(text: str, length: int) -> str:
    """The first ``length`` characters at most, without a torn word, unless that word is most of them."""
    whole = text[: length + 1].rpartition(" ")[0].rstrip()
    return whole if len(whole) > length // 2 else text[:length]


def near_miss(value: object, allowed: Iterable[str]) -> str | None:
    """``did you mean 'fsdp'?`` when ``value`` is close to one of ``allowed``, else None."""
    from difflib import get_close_matches  # only a wrong name needs it

    close = get_close_matches(str(value), list(allowed), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None
