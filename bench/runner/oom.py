"""Whether an error means that memory ran out: what refused it, in which words, and how much was requested.

Only proof counts: the error's type, or the fixed words of the library that failed. An error that running out of memory
often causes, but other faults cause too, is no proof and stays an ordinary failure: otherwise a search for the largest
batch would take a bug for a limit. So these are not out of memory:

    CUBLAS_STATUS_NOT_INITIALIZED   a broken context, a bad index or an unsupported driver cause it too
    CUDNN_STATUS_NOT_SUPPORTED      a limit of cuDNN on shapes and strides, with any amount of memory
    cuDNN "unable to find an engine", CUFFT_INTERNAL_ERROR    other faults cause them too
    a bus error, no space left on /dev/shm    the size of a mount, not of the memory
    ibv_reg_mr: Cannot allocate memory        the limit on locked pages

Under a limit that bench itself set just above what fits (RLIMIT_DATA), and on a device that is full, some symptoms do
count: see ``find``.
"""

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.diagnosis.oom_words import Kind, bytes_asked, line
from bench.diagnosis.oom_words import find as find_words

MESSAGE_CHARS = 1000


@dataclass(frozen=True)
class Oom:
    """The evidence that memory ran out."""

    kind: Kind
    message: str
    """``Type: words``: the line that proves it."""
    bytes_asked: int | None
    """The size of the failed request, as precise as the message prints it; None if it does not."""


def find(error: BaseException, *, limited: bool = False, full: bool = False) -> Oom | None:
    """The evidence that memory ran out, in ``error`` or in any error behind it; None when there is none.

    Args:
        limited: bench limited this process's memory. Then some words count that otherwise may come from other faults:
            those of oneDNN, CPython and the start of a thread when an allocation fails.
        full: the device has next to no memory left. Then those of cuBLAS, cuDNN and cuSOLVER count, which allocate
            their handles and plans beside torch's allocator.
    """
    links, symptoms = list(_chain(error)), _SYMPTOMS * limited + _ON_A_FULL_DEVICE * full
    proof = next((oom for link in links if (oom := _read(link))), None)
    return proof or next((oom for link in links if (oom := _symptom(link, symptoms))), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, contexts and members, each once, the nearest first.

    A context counts even after ``raise ... from None``, which hides an error but does not undo it.
    """
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    for link in found:
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        found += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            found += link.exceptions


Symptoms = tuple[tuple[Kind, type[Exception], re.Pattern[str]], ...]
_SYMPTOMS: Symptoms = (
    # Its status is lost on the way. The primitive's description has been accepted by then, so what fails is most often
    # memory for its code; once it was a processor that it did not know (pytorch/pytorch#89104).
    ("onednn", RuntimeError, line("could not create a primitive$")),
    # CPython, where it does not look whether an allocation inside it has failed.
    ("python", SystemError, re.compile("(?:error return without|returned NULL without setting an) exception")),
    # pthread_create says EAGAIN when there is no memory for a stack, and also at the limit on processes.
    ("system", RuntimeError, line("can't start new thread$|Resource temporarily unavailable$")),
)
_ON_A_FULL_DEVICE: Symptoms = (
    ("cublas", RuntimeError, line(r"CUDA error: (?:CU|HIP)BLAS_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b")),
    ("cuda_library", RuntimeError, line(r"cusolver error: CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b")),
    (
        "cudnn",
        RuntimeError,
        line(
            r"[Cc]uDNN error: CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b"
            r"|cuDNN Frontend error: .*[Nn]o valid execution plans|(?:GET|FIND) was unable to find an engine"
        ),
    ),
)
_PINNING = re.compile(r"^Caught \w+ in pin memory thread")
"""Of a DataLoader: it asks the driver for memory of the host, and the driver's words are those for the device."""


def _read(error: BaseException) -> Oom | None:
    """The evidence in this one error."""
    if not isinstance(error, RuntimeError | MemoryError | OSError):
        return None  # in an error of another type the same words are data
    text = str(error)
    if found := find_words(text):
        kind, match = found
        pinned = kind == "cuda_driver" and _PINNING.match(text)
        return _oom("pinned_host" if pinned else kind, error, text[match.start() :])
    if isinstance(error, torch.OutOfMemoryError):
        return _oom("cuda_allocator", error, text)
    if isinstance(error, MemoryError):
        return _oom("python", error, text)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return _oom("system", error, text)
    return None


def _symptom(error: BaseException, symptoms: Symptoms) -> Oom | None:
    """The evidence in this one error, where memory is known to be short."""
    for kind, of_type, words in symptoms:
        if isinstance(error, of_type) and words.search(str(error)):
            return _oom(kind, error, str(error))
    return None


def _oom(kind: Kind, error: BaseException, text: str) -> Oom:
    first = next(iter(text.strip().splitlines()), "")
    has_type = re.match(r"[\w.]*(?:Error|Exception)\b", first)
    message = first if has_type else f"{type(error).__name__}: {first}".removesuffix(": ")
    return Oom(kind=kind, message=message[:MESSAGE_CHARS], bytes_asked=bytes_asked(text))
