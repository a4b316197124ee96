"""What is shown as it is: the commands of attempts and the logs of failures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.errors import one_line
from bench.records.outcome import KINDS, Failed, Hang, Result
from bench.report.naming import REASON_LIMIT
from bench.report.summary import row_of
from bench.report.tables.raw_matrix import few_steps

SHOWN_COLLECTIVES = 10


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one attempt beside its result."""

    folder: str
    command: str | None = None
    """The script that runs the attempt again."""
    log_tails: Mapping[str, str] = field(default_factory=dict)
    """The end of each log, by its name."""


@dataclass(frozen=True, kw_only=True)
class Verbatim:
    """Lines that are shown as they are."""

    title: str
    text: str


def verbatim(results: Sequence[Result], files: Mapping[str, Files]) -> Iterator[Verbatim]:
    """The commands, each once, and the logs of failures. ``files`` is by the attempt's slug."""
    for part in _parts(results, files):
        yield Verbatim(title=one_line(part.title), text=_plain(part.text))


def _parts(results: Sequence[Result], files: Mapping[str, Files]) -> Iterator[Verbatim]:
    scripts: dict[str, list[str]] = {}
    for result in results:
        if (of_attempt := files.get(result.attempt.slug)) and of_attempt.command:
            scripts.setdefault(of_attempt.command, []).append(batch(result))
    for script, batches in scripts.items():
        yield Verbatim(title=f"command.sh of batch {', '.join(batches)}", text=script)
    for result in results:
        if reason := row_of(result).reason:
            evidence = result.outcome.evidence if isinstance(result.outcome, Failed) else None
            cut = len(one_line(reason)) > REASON_LIMIT
            if text := "\n\n".join(part for part in (reason if cut else None, evidence) if part):
                yield Verbatim(title=f"Why batch {batch(result)} {KINDS[result.outcome.kind].verb}", text=text)
        for rank in result.outcome.stuck if isinstance(result.outcome, Hang) else ():
            latest = "\n".join(f"{made.number} {made}" for made in rank.collectives[-SHOWN_COLLECTIVES:])
            text = f"{rank.phase} {rank.step}/{rank.steps}\n\nlatest collectives:\n{latest or 'none'}\n\n{rank.stacks}"
            yield Verbatim(title=f"Rank {rank.rank} in the hang of batch {batch(result)}", text=text)
        if KINDS[result.outcome.kind].explained_by_logs and (of_attempt := files.get(result.attempt.slug)):
            for name, tail in of_attempt.log_tails.items():
                yield Verbatim(title=f"End of {name}, batch {batch(result)}: {result.outcome.kind}", text=tail)


def batch(result: Result) -> str:
    """The batch of a result, marked if it has few steps, and the launch if it is a further one."""
    launch = f" (launch {result.attempt.launch})" if result.attempt.launch > 1 else ""
    return f"{result.attempt.batch_per_rank}{few_steps(result.attempt.short)}{launch}"


def _plain(text: str) -> str:
    """Without control characters: a log may hold any of them, and a terminal would obey them."""
    return "".join(char for char in text.expandtabs() if char.isprintable() or char == "\n")
