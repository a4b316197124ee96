"""The words in which libraries say that memory ran out, for errors and for logs. Pure."""

import re
from typing import Literal

Kind = Literal[
    "cuda_allocator",
    "cuda_driver",
    "cublas",
    "cudnn",
    "cuda_library",
    "nccl",
    "pinned_host",
    "cpu_allocator",
    "onednn",
    "shared_memory",
    "cpp",
    "python",
    "system",
]
"""What refused the memory. Libraries that only pass an error on, such as DeepSpeed or a DataLoader, have no kind."""


LOADER_FAILED = 127
"""glibc's exit code when it cannot load a library at run time."""


def line(words: str) -> re.Pattern[str]:
    """``words`` at the start of a line, as they are or as a traceback prints them: ``Type: words``.

    A worker's error arrives as such a traceback, inside the text of another.
    """
    return re.compile(rf"^(?:[\w.]+: )?(?:{words}).*$", re.MULTILINE)


WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "cuda_allocator",
        line(
            r"(?:CUDA|HIP|XPU) out of memory\.|MPS backend out of memory \("
            r"|Allocation on device (?:\d+ )?would exceed allowed memory\. \(out of memory\)"
        ),
    ),
    (
        "cuda_driver",
        line(
            r"(?:CUDA|HIP) (?:driver )?error: out of memory(?:$| \()|Triton Error \[(?:CUDA|HIP)\]: out of memory$"
            r"|cuda runtime error \(2\) ?: out of memory at "
        ),
    ),
    ("cublas", line(r"CUDA error: (?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b")),
    (
        "cudnn",
        line(r"[Cc]uDNN error: CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED)\b"),
    ),
    (
        "cuda_library",
        line(r"cusolver error: CUSOLVER_STATUS_ALLOC_FAILED\b|cuFFT error: CUFFT_ALLOC_FAILED\b"),
    ),
    (
        "nccl",
        # After "Last error:". The warning about the request comes after, and instead of, the CUDA failure behind it.
        line(
            r"Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:calloc|malloc|host alloc)(?: async)? \d+ bytes"
            r"|NCCL [Ee]rror\b.*\bout of memory\b"
        ),
    ),
    (
        "cpu_allocator",
        line(r"(?:\[enforce fail at [^\]]+\].*?)?DefaultCPUAllocator: (?:can't allocate|not enough) memory: "),
    ),
    (
        "shared_memory",
        line(r"unable to (?:mmap \d+ bytes from|allocate shared memory\(shm\) for) file <.*>: Cannot allocate memory"),
    ),
    ("cpp", line(r"std::bad_alloc$")),
    ("python", re.compile(r"^(?:[\w.]+\.)?(?:_Array)?MemoryError(?:: .*)?$", re.MULTILINE)),
    ("system", line(r"\[Errno 12\] Cannot allocate memory\b")),
)

_ASKED = re.compile(
    r"(?:[Tt]ried to allocate|Unable to allocate|unable to mmap|Requested +:|Failed to CUDA [a-z ]+?)"
    r" (?P<number>\d+(?:\.\d*)?) (?P<unit>bytes|[KMGTPE]iB)\b"
)
_UNITS = {"bytes": 1, **{f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGTPE", 1)}}


def find(*texts: str) -> tuple[Kind, re.Match[str]] | None:
    """What refused memory, and its words: the first of `WORDS` that any of the texts has."""
    found = ((kind, words.search(text)) for kind, words in WORDS for text in texts)
    return next(((kind, match) for kind, match in found if match), None)


def bytes_asked(text: str) -> int | None:
    """The size of the failed request, as precise as its message prints it."""
    asked = _ASKED.search(text)
    return asked and round(float(asked["number"]) * _UNITS[asked["unit"]])


_HOST_ABORT = re.compile(
    r"""
    ^terminate\ called\ after\ throwing\ an\ instance\ of\ 'std::bad_alloc'
    |^terminate\ called\ after\ throwing\ an\ instance\ of\ '[\w:]+'\n\ +what\(\):\ +
        \[enforce\ fail\ at\ .*DefaultCPUAllocator:\ (?:can't\ allocate|not\ enough)\ memory:
    |^libc\+\+abi:\ terminating\ .*\ of\ type\ std::bad_alloc
    |^memory\ allocation\ of\ \d+\ bytes\ failed  # Rust
    """,
    re.MULTILINE | re.VERBOSE,
)
_DEVICE_ABORT = re.compile(
    r"""
    ^terminate\ called\ after\ throwing\ an\ instance\ of\ 'c10::OutOfMemoryError'
    |^terminate\ called\ after\ throwing\ an\ instance\ of\ '[\w:]+'\n\ +what\(\):\ +
        CUDA\ (?:out\ of\ memory\.|error:\ out\ of\ memory$)
    |^libc\+\+abi:\ terminating\ .*\ of\ type\ c10::OutOfMemoryError
    """,
    re.MULTILINE | re.VERBOSE,
)


def end_for_memory(end: int | str, killer: str | None, log: str, *, limited: bool = False) -> tuple[str, str] | None:
    """What reported that memory ran out when a rank ended so without a word, and in which words; None if nothing did.

    Args:
        end: its exit code, or the name of the signal that ended it.
        killer: the kernel's out-of-memory killer, in words, if it ended a process meanwhile.
        log: the end of the rank's log.
        limited: a memory limit of bench was in force.
    """
    if end == LOADER_FAILED and limited:
        return "loader", "the dynamic loader could not map a library within the memory limit"
    if end == "SIGKILL" and killer:
        return "kernel", f"killed by {end}: {killer}"
    if end == "SIGABRT" and (source := abort_source(log)):
        return source, f"killed by {end}: native code aborted because an allocation failed"
    return None


def abort_source(log_tail: str) -> Literal["abort", "cuda_abort"] | None:
    """Whose failed allocation made native code abort (SIGABRT): the host's or the GPU's. None for another reason."""
    if _DEVICE_ABORT.search(log_tail):
        return "cuda_abort"
    return "abort" if _HOST_ABORT.search(log_tail) else None
