"""The files that bench and its ranks exchange. Each is written under a temporary name, then renamed.

An attempt's folder (named by the store):

    spec.json        the attempt and where it runs, for the runner
    accelerate.yaml  what `accelerate launch --config_file` is given
    rank<N>.json     the outcome of rank N; see bench/records/rank_outcome.py
    walk<N>.json     a walk's footprints
    audit<N>.json    what an audit found; see bench/audit
    rank<N>.log      its output: the first and the last megabyte, see bench/runner/log.py
    rank<N>.beat     its stage, step and newest collective, one line, rewritten in place; below, one line for each
                     stage that it has entered; see bench/store/beats.py
    checkpoint/      while a checkpoint is measured
    diagnose         bench asks all ranks for their stacks, before it ends them
    rank<N>.stuck.json, rank<N>.stacks
                     the answer; and the stacks of a rank that could not answer

A spool folder, one per launch of rank servers:

    server<N>.json   its state: ready, and the number of the last request it has finished
    request.json     the newest request
    meeting<S>.json  with several nodes: where the launchers of all nodes meet in step S, written by the first
    closed           with several nodes: the launchers must end
"""

import errno
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from bench.records.base import Device, Frozen
from bench.records.call_site import site_of_dump
from bench.records.cell import Attempt, Audit, Walk
from bench.records.hang import Stuck
from bench.records.rank_outcome import RankError, RankKilled, RankOutcome
from bench.store import secrets
from bench.store.beats import last_stage

Model = TypeVar("Model", bound=BaseModel)
_RANK_OUTCOME: TypeAdapter[RankOutcome] = TypeAdapter(RankOutcome)


NODE, MAIN_ADDRESS = "BENCH_NODE", "BENCH_MAIN_ADDRESS"
"""Variables of ranks on several nodes: the name of theirs, and the address of the first."""


class Rendezvous(Frozen):
    """Where the launchers of all nodes meet."""

    address: str
    port: int


class NodeBeat(Frozen):
    """`node<N>.alive`, which the launch of a node rewrites every second."""

    name: str
    """Of the node."""
    number: int


class Spec(Frozen):
    """Everything a rank needs to know about its attempt."""

    attempt: Attempt | Walk | Audit
    device: Device
    units: tuple[str, ...] | None
    """Class names of the workload's units; null: they are found in the model."""
    workload_folder: str | None = None
    """Where the workload's module is looked for first."""
    check: bool = False
    """Whether the ranks also check that they build the same model."""


class Request(Frozen):
    """bench asks the rank servers for one attempt."""

    number: int
    folder: str
    """The attempt's folder, absolute."""
    port: int
    """For the attempt's own rendezvous, free on the first node."""
    cancelled: str | None = None
    """Why the attempt must end, once it must."""


class ServerState(Frozen):
    """The state of a rank server."""

    rank: int
    pid: int
    child: int | None = None
    """The process of the running attempt."""
    finished: int = 0
    """Number of the last request whose child process has ended, and left its GPU."""
    ended_s: float | None = None
    """When that was, by the clock of `beats.Entry`."""
    unforkable: str | None = None
    """Why this server cannot fork, once that is known."""
    held_bytes: int = 0
    """Memory that its GPU did not have back in time after that child."""


def node_file(folder: Path, node: int) -> Path:
    return folder / f"node{node}.alive"


def close(folder: Path) -> None:
    """Have the launchers of this spool folder end, on every node."""
    (folder / "closed").touch()


def is_closed(folder: Path) -> bool:
    return content(folder / "closed") is not None


def ask_for_diagnosis(folder: Path) -> None:
    """Ask every rank of the attempt for its stacks and collectives."""
    (folder / "diagnose").touch()


def diagnosis_asked(folder: Path) -> bool:
    look_across(folder)
    return (folder / "diagnose").exists()


def stuck_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stuck.json"


def read_stuck(folder: Path, world_size: int) -> list[Stuck]:
    """The answers of the ranks so far."""
    return _of_ranks(stuck_file, folder, world_size, Stuck)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``path`` atomically: a reader or a crash sees the old content or the new one, never a part."""
    aside = path.with_name(f".{uuid.uuid4().hex}")  # short, and no other host's: they may share the disk
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write(path: Path, record: BaseModel) -> None:
    write_text(path, record.model_dump_json(indent=1) + "\n")


def read(path: Path, kind: type[Model]) -> Model | None:
    """The record at ``path``, or None when the file is missing."""
    text = content(path)
    return None if text is None else kind.model_validate_json(text)


def content(path: Path) -> bytes | None:
    """What a file holds, or None when it is missing now, not a moment ago."""
    for last in (False, True):
        try:
            return path.read_bytes()
        except OSError as error:  # ESTALE: another node has just replaced the file
            if error.errno not in (errno.ENOENT, errno.ESTALE) or (last and error.errno == errno.ESTALE):
                raise
        if not last:
            look_again(path.parent)
    return None


def look_again(folder: Path) -> None:
    """Forget what this node remembers of a folder: NFS knows for a minute which files were missing, and which folder
    had a name. It asks the server when a folder is opened: nfs(5), close-to-open cache consistency."""
    for one in (folder.parent, folder):
        with suppress(OSError):
            os.close(os.open(one, os.O_RDONLY | os.O_DIRECTORY))


def look_across(folder: Path) -> None:
    """Look again, in a rank whose world has several nodes."""
    if NODE in os.environ:
        look_again(folder)


def why(error: ValidationError) -> str:
    """The first problem and its field."""
    first = error.errors(include_url=False)[0]
    where = [".".join(map(str, first["loc"]))] if first["loc"] else []
    return ": ".join([*where, first["msg"].removeprefix("Value error, ")])


LAST_WORDS_BYTES = 4000


def last_words(folder: Path, rank: int) -> str:
    """The end of a rank's log without the user's secrets; empty when it has none."""
    return end_of(folder / f"rank{rank}.log", LAST_WORDS_BYTES)


def end_of(log: Path, most: int) -> str:
    """At most so many characters of a log's end, without the user's secrets; empty when there is none."""
    try:
        with log.open("rb") as file:
            # Twice as much, because half a secret would not be recognized.
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * most))
            return secrets.mask(file.read().decode(errors="replace"))[-most:]
    except OSError:
        return ""


def last_place(folder: Path, rank: int) -> str | None:
    """The place in the code where a rank ended: from its answer to a diagnosis, or from the dump of a fatal signal."""
    if (stuck := whole(stuck_file(folder, rank), Stuck)) is not None:
        return stuck.place
    try:
        return site_of_dump((folder / f"rank{rank}.stacks").read_text(errors="replace"))
    except OSError:
        return None


def report_of_end(
    folder: Path, rank: int, end: int | str, at: float, by_bench: str | None = None
) -> RankError | RankKilled:
    """The report on a rank whose process ended without writing its own.

    Args:
        end: its exit code, or the name of the signal that ended it.
        at: see `RankError`.
        by_bench: see `RankKilled`.
    """
    phase, place = last_stage(folder, rank), last_place(folder, rank)
    if isinstance(end, int):
        error = f"the process ended by itself with exit code {end} and left no result"
        return RankError(rank=rank, phase=phase, error=error, traceback="", at=at, place=place)
    words = last_words(folder, rank) or None
    return RankKilled(rank=rank, phase=phase, signal=end, at=at, by_bench=by_bench, place=place, last_words=words)


def whole(path: Path, kind: type[Model]) -> Model | None:
    """As `read`, and None for a torn file, too."""
    try:
        return read(path, kind)
    except ValidationError:
        return None


def audit_file(folder: Path, rank: int) -> Path:
    return folder / f"audit{rank}.json"


def read_audits(folder: Path, world_size: int, kind: type[Model]) -> list[Model]:
    """The findings of an audit's ranks; a torn file is left out."""
    return _of_ranks(audit_file, folder, world_size, kind)


def _of_ranks(file_of: Callable[[Path, int], Path], folder: Path, world_size: int, kind: type[Model]) -> list[Model]:
    found = (whole(file_of(folder, rank), kind) for rank in range(world_size))
    return [one for one in found if one is not None]


def checkpoint_folder(folder: Path) -> Path:
    """Where the ranks of an attempt save a checkpoint. They remove it after loading; what a failure leaves is removed
    after the launch."""
    return folder / "checkpoint"


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def read_ranks(folder: Path, world_size: int) -> list[RankOutcome]:
    """The outcomes of an attempt's ranks so far; a rank whose file is torn or foreign counts as failed."""
    found: list[RankOutcome] = []
    for rank in range(world_size):
        file = rank_file(folder, rank)
        if (text := content(file)) is None:
            continue
        try:
            found.append(_RANK_OUTCOME.validate_json(text))
        except ValidationError as error:
            words, phase = f"{file.name} cannot be read: {why(error)}", last_stage(folder, rank)
            found.append(RankError(rank=rank, phase=phase, error=words, traceback="", at=file.stat().st_mtime))
    return found
