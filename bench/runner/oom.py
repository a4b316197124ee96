"""Whether an error means that memory ran out: what refused it, in which words, and how much was requested.

Only proof counts: the error's type, or the fixed words of the library that failed. An error that running out of memory
often causes, but other faults cause too, is no proof and stays an ordinary failure: otherwise a search for the largest
batch would take a bug for a limit. So these are not out of memory:

    CUBLAS_STATUS_NOT_INITIALIZED   a broken context, a bad index or an unsupported driver cause it too
    CUDNN_STATUS_NOT_SUPPORTED      a limit of cuDNN on shapes and strides, with any amount of memory
    cuDNN "unable to find an engine", CUFFT_INTERNAL_ERROR    other faults cause them too
    a bus error, no space left on /dev/shm    the size of a mount, not of the memory
    ibv_reg_mr: Cannot allocate memory        the limit on locked pages

Under a limit that bench itself set just above what fits (RLIMIT_DATA), some symptoms do count: see ``find``.
"""

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal[
    "cuda_allocator",
    "cuda_driver",
    "cublas",
    "cudnn",
    "cuda_library",
    "nccl",
    "cpu_allocator",
    "onednn",
    "shared_memory",
    "cpp",
    "python",
    "system",
]
"""What refused the memory. Libraries that only pass an error on, such as DeepSpeed or a DataLoader, have no kind."""

MESSAGE_CHARS = 1000


@dataclass(frozen=True)
class Oom:
    """The evidence that memory ran out."""

    kind: Kind
    message: str
    """``Type: words``: the line that proves it."""
    bytes_asked: int | None
    """The size of the failed request, as precise as the message prints it; None if it does not."""


def find(error: BaseException, *, limited: bool = False) -> Oom | None:
    """The evidence that memory ran out, in ``error`` or in any error behind it; None when there is none.

    Args:
        limited: bench limited this process's memory. Then some words count that otherwise may come from other faults:
            those of oneDNN, CPython and the start of a thread when an allocation fails.
    """
    links = list(_chain(error))
    proof = next((oom for link in links if (oom := _read(link))), None)
    return proof or (next((oom for link in links if (oom := _symptom(link))), None) if limited else None)


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


def _line(words: str) -> re.Pattern[str]:
    """``words`` at the start of a line, as they are or as a traceback prints them: ``Type: words``.

    A worker's error arrives as such a traceback, inside the text of another.
    """
    return re.compile(rf"^(?:[\w.]+: )?(?:{words}).*$", re.MULTILINE)


_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "cuda_allocator",
        _line(
            r"(?:CUDA|HIP|XPU) out of memory\.|MPS backend out of memory \("
            r"|Allocation on device (?:\d+ )?would exceed allowed memory\. \(out of memory\)"
        ),
    ),
    (
        "cuda_driver",
        _line(
            r"(?:CUDA|HIP) (?:driver )?error: out of memory(?:$| \()|Triton Error \[(?:CUDA|HIP)\]: out of memory$"
            r"|cuda runtime error \(2\) ?: out of memory at "
        ),
    ),
    ("cublas", _line(r"CUDA error: (?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b")),
    (
        "cudnn",
        _line(r"[Cc]uDNN error: CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED)\b"),
    ),
    (
        "cuda_library",
        _line(r"cusolver error: CUSOLVER_STATUS_ALLOC_FAILED\b|cuFFT error: CUFFT_ALLOC_FAILED\b"),
    ),
    (
        "nccl",
        # After "Last error:". The warning about the request comes after, and instead of, the CUDA failure behind it.
        _line(
            r"Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:calloc|malloc|host alloc)(?: async)? \d+ bytes"
            r"|NCCL [Ee]rror\b.*\bout of memory\b"
        ),
    ),
    (
        "cpu_allocator",
        _line(r"(?:\[enforce fail at [^\]]+\].*?)?DefaultCPUAllocator: (?:can't allocate|not enough) memory: "),
    ),
    (
        "shared_memory",
        _line(r"unable to (?:mmap \d+ bytes from|allocate shared memory\(shm\) for) file <.*>: Cannot allocate memory"),
    ),
    ("cpp", _line(r"std::bad_alloc$")),
    ("python", re.compile(r"^(?:[\w.]+\.)?(?:_Array)?MemoryError(?:: .*)?$", re.MULTILINE)),
    ("system", _line(r"\[Errno 12\] Cannot allocate memory\b")),
)

_SYMPTOMS: tuple[tuple[Kind, type[Exception], re.Pattern[str]], ...] = (
    # Its status is lost on the way. The primitive's description has been accepted by then, so what fails is most often
    # memory for its code; once it was a processor that it did not know (pytorch/pytorch#89104).
    ("onednn", RuntimeError, _line("could not create a primitive$")),
    # CPython, where it does not look whether an allocation inside it has failed.
    ("python", SystemError, re.compile("(?:error return without|returned NULL without setting an) exception")),
    # pthread_create says EAGAIN when there is no memory for a stack, and also at the limit on processes.
    ("system", RuntimeError, _line("can't start new thread$|Resource temporarily unavailable$")),
)

_ASKED = re.compile(
    r"(?:[Tt]ried to allocate|Unable to allocate|unable to mmap|Requested +:|Failed to CUDA [a-z ]+?)"
    r" (?P<number>\d+(?:\.\d*)?) (?P<unit>bytes|[KMGTPE]iB)\b"
)
_UNITS = {"bytes": 1, **{f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGTPE", 1)}}


def _read(error: BaseException) -> Oom | None:
    """The evidence in this one error."""
    if not isinstance(error, RuntimeError | MemoryError | OSError):
        return None  # in an error of another type the same words are data
    text = str(error)
    for kind, words in _WORDS:
        if match := words.search(text):
            return _oom(kind, error, text[match.start() :])
    if isinstance(error, torch.OutOfMemoryError):
        return _oom("cuda_allocator", error, text)
    if isinstance(error, MemoryError):
        return _oom("python", error, text)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return _oom("system", error, text)
    return None


def _symptom(error: BaseException) -> Oom | None:
    """The evidence in this one error, under a memory limit."""
    for kind, of_type, words in _SYMPTOMS:
        if isinstance(error, of_type) and words.search(str(error)):
            return _oom(kind, error, str(error))
    return None


def _oom(kind: Kind, error: BaseException, text: str) -> Oom:
    line = next(iter(text.strip().splitlines()), "")
    has_type = re.match(r"[\w.]*(?:Error|Exception)\b", line)
    message = line if has_type else f"{type(error).__name__}: {line}".removesuffix(": ")
    return Oom(kind=kind, message=message[:MESSAGE_CHARS], bytes_asked=_bytes_asked(text))


def _bytes_asked(text: str) -> int | None:
    asked = _ASKED.search(text)
    return asked and round(float(asked["number"]) * _UNITS[asked["unit"]])
