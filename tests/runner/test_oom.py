"""What is out of memory and what is not: the words of the libraries, the real thing, and the kernel's killer."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError

from bench.diagnosis.oom_words import abort_source
from bench.machine.oom_kill import counts, killed_since
from bench.runner.oom import MESSAGE_CHARS, Kind, Oom, find

ROOT = Path(__file__).parents[2]
MIB, GIB, TIB = 2**20, 2**30, 2**40

ASYNC = (  # pytorch/pytorch#110194
    "Allocation on device 5 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : 54.14 GiB\nRequested               : 686.41 MiB\nDevice limit            : 79.35 GiB\n"
    "Free (according to CUDA): 27.19 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
    "                        : 17179869184.00 GiB"
)
ASYNC_HINT = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)  # torch, c10/cuda/CUDAException.cpp
NCCL = (  # torch, c10d/NCCLUtils.hpp, as in NVIDIA/nccl#1410
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
)
NCCL_SYSTEM = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled system error, NCCL version "
    "2.19.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\n"
)
IN_WORKER = (
    'Original Traceback (most recent call last):\n  File "worker.py", line 178, in _worker_loop\n    data = fetch()\n'
)
CPU = (
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"
)

OUT_OF_MEMORY: list[tuple[BaseException, Kind, int | None]] = [
    # pytorch/pytorch#16417, a torch of 2024
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which "
            "11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the "
            "allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but unallocated."
        ),
        "cuda_allocator",
        22 * MIB,
    ),
    # torch, c10/cuda/CUDACachingAllocator.cpp, under set_per_process_memory_fraction
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.32 GiB of which 70.00 "
            "GiB is free. 8.00 GiB allowed; Of the allocated memory 7.10 GiB is allocated by PyTorch, and 100.00 MiB"
        ),
        "cuda_allocator",
        2 * GIB + GIB // 2,
    ),
    # pytorch/pytorch#59778, before there was a type for it
    (
        RuntimeError(
            "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already "
            "allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"
        ),
        "cuda_allocator",
        round(2.26 * GIB),
    ),
    # shllln/GenerativeGraph#5
    (RuntimeError("CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB)"), "cuda_allocator", MIB),
    # torch, the allocators' check of absurd sizes
    (RuntimeError("CUDA out of memory. Tried to allocate more than 1EB memory."), "cuda_allocator", None),
    (torch.OutOfMemoryError(ASYNC), "cuda_allocator", round(686.41 * MIB)),
    # theroyallab/tabbyAPI#381: the type alone
    (torch.OutOfMemoryError("Allocation on device "), "cuda_allocator", None),
    # ROCm and XPU builds of torch; accelerate's list
    (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 4.00 GiB. GPU 0"), "cuda_allocator", 4 * GIB),
    (torch.OutOfMemoryError("XPU out of memory. Tried to allocate 512.00 MiB. GPU 0"), "cuda_allocator", 512 * MIB),
    (
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 17.99 GB, other allocations: 64.00 KB, max allowed: 18.13 GB). "
            "Tried to allocate 256 bytes on shared pool."
        ),
        "cuda_allocator",
        256,
    ),
    # deepbeepmeep/Wan2GP#1083
    (torch.AcceleratorError(f"CUDA error: out of memory\n{ASYNC_HINT}"), "cuda_driver", None),
    # huggingface/transformers#24658, DeepSpeed ZeRO-3 pinning host memory
    (RuntimeError(f"CUDA error: out of memory\n{ASYNC_HINT}"), "cuda_driver", None),
    # torch 1.0
    (
        RuntimeError("CUDA error: out of memory (getDevice at /pytorch/c10/cuda/impl/CUDAGuardImpl.h:37)"),
        "cuda_driver",
        None,
    ),
    # unslothai/unsloth#2401, expandable segments
    (RuntimeError("CUDA driver error: out of memory"), "cuda_driver", None),
    # rowanz/neural-motifs#58
    (
        RuntimeError("cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCTensorRandom.cu:25"),
        "cuda_driver",
        None,
    ),
    (RuntimeError("HIP error: out of memory"), "cuda_driver", None),
    # Triton's launcher, loading a kernel
    (RuntimeError("Triton Error [CUDA]: out of memory"), "cuda_driver", None),
    # torch._dynamo names the backend first
    (
        RuntimeError("backend='inductor' raised:\nRuntimeError: Triton Error [CUDA]: out of memory\n"),
        "cuda_driver",
        None,
    ),
    # QwenLM/Qwen3#873
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cublas", None),
    # ROCm's name for it
    (RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"), "cublas", None),
    # pytorch/pytorch#20123; cuDNN before 1.0 and since 9
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cudnn", None),
    (RuntimeError("CuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cudnn", None),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "cudnn", None),
    # torch, CUDASolver and CuFFTUtils
    (
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        "cuda_library",
        None,
    ),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "cuda_library", None),
    # NCCL's last error: since 2.19, before it, and the warning that replaces it (NVIDIA/nccl#1235)
    (DistBackendError(f"{NCCL}Cuda failure 2 'out of memory'"), "nccl", None),
    (DistBackendError(f"{NCCL}Cuda failure 'out of memory'"), "nccl", None),
    (DistBackendError(f"{NCCL}Failed to CUDA calloc 6291456 bytes"), "nccl", 6 * MIB),
    (DistBackendError(f"{NCCL}Failed to CUDA calloc async 608 bytes"), "nccl", 608),
    # torch, csrc/cuda/nccl.cpp
    (RuntimeError("NCCL Error 1: unhandled cuda error (out of memory)"), "nccl", None),
    # this machine's torch 2.13; pytorch/pytorch#20618; MaximeVandegar/Papers-in-100-Lines-of-Code#10, on Windows
    (
        RuntimeError(f"[enforce fail at alloc_cpu.cpp:127] err == 0. {CPU.format(4 * 10**15)}"),
        "cpu_allocator",
        4 * 10**15,
    ),
    (RuntimeError(f"[enforce fail at CPUAllocator.cpp:65] . {CPU.format(123)}"), "cpu_allocator", 123),
    (
        RuntimeError(
            "[enforce fail at C:\\b\\abs\\work\\c10\\core\\impl\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not "
            "enough memory: you tried to allocate 1981808640 bytes."
        ),
        "cpu_allocator",
        1981808640,
    ),
    # Esri/arcgis-python-api#743, a DataLoader worker
    (
        RuntimeError(
            f"Caught RuntimeError in DataLoader worker process 0.\n{IN_WORKER}"
            f"RuntimeError: [enforce fail at CPUAllocator.cpp:64] . {CPU.format(402653184)}\n"
        ),
        "cpu_allocator",
        402653184,
    ),
    # torch/_utils.py, ExceptionWrapper
    (
        torch.OutOfMemoryError(
            f"Caught OutOfMemoryError in replica 1 on device 1.\n{IN_WORKER}"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
        ),
        "cuda_allocator",
        20 * MIB,
    ),
    # the same, of a type that takes two arguments
    (
        RuntimeError(
            f"Caught _ArrayMemoryError in DataLoader worker process 1.\n{IN_WORKER}"
            "numpy._core._exceptions._ArrayMemoryError: "
            "Unable to allocate 3.5 GiB for an array with shape (469762048,) and data type float64\n"
        ),
        "python",
        3 * GIB + GIB // 2,
    ),
    (
        OSError(f"Caught OSError in pin memory thread.\n{IN_WORKER}OSError: [Errno 12] Cannot allocate memory\n"),
        "system",
        None,
    ),
    # the same thread on a GPU, where it pins memory of the host through the driver
    (
        torch.AcceleratorError(
            f"Caught AcceleratorError in pin memory thread for device 0.\n{IN_WORKER}"
            f"torch.AcceleratorError: CUDA error: out of memory\n{ASYNC_HINT}"
        ),
        "pinned_host",
        None,
    ),
    # facebookresearch/SlowFast#473; pytorch/pytorch#92134; libtorch's MapAllocator
    (
        RuntimeError("unable to mmap 280 bytes from file </torch_59534_1208885928>: Cannot allocate memory (12)"),
        "shared_memory",
        280,
    ),
    (
        RuntimeError("unable to mmap 2048 bytes from file <filename not specified>: Cannot allocate memory (12)"),
        "shared_memory",
        2048,
    ),
    (
        RuntimeError("unable to allocate shared memory(shm) for file </torch_18_3>: Cannot allocate memory (12)"),
        "shared_memory",
        None,
    ),
    # C++, through torch's bindings and through pybind11's
    (RuntimeError("std::bad_alloc"), "cpp", None),
    (MemoryError("std::bad_alloc"), "cpp", None),
    # CPython, three from this machine under RLIMIT_DATA
    (MemoryError(), "python", None),
    (MemoryError("Unable to allocate output buffer."), "python", None),
    (MemoryError("Out of memory interning an attribute name"), "python", None),
    (
        MemoryError("Unable to allocate 728. TiB for an array with shape (100000000000000,) and data type float64"),
        "python",
        728 * TIB,
    ),
    # subprocess and multiprocessing when fork finds no memory; an import under RLIMIT_DATA
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "system", None),
    (
        OSError(errno.ENOMEM, "Cannot allocate memory", "/lib/python3.11/site-packages/sympy/polys/matrices"),
        "system",
        None,
    ),
]

OTHERWISE: list[BaseException] = [
    # torch and Triton: CUDA errors that end the context
    torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered\n{ASYNC_HINT}"),
    RuntimeError(f"CUDA error: device-side assert triggered\n{ASYNC_HINT}"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA driver error: invalid argument"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    # more of a multiprocessor than it has, whatever the memory
    RuntimeError("CUDA error: too many resources requested for launch"),
    RuntimeError(
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes may help."
    ),
    # torch, CUDAFunctions.cpp
    RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    RuntimeError("CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    # QwenLM/Qwen#120 was out of memory; wzk1015/video-bgm-generation#27 was a wrong index
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`"),
    # pytorch/pytorch#32564 and #2917: strides, and a limit on the batch of one kernel
    RuntimeError(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
    ),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    # pytorch/pytorch#119420
    RuntimeError("cuFFT error: CUFFT_INTERNAL_ERROR"),
    # NVIDIA/nccl#1410 and #1935
    DistBackendError(f"{NCCL}Cuda failure 1 'invalid argument'"),
    DistBackendError(f"{NCCL}Cuda failure 700 'an illegal memory access was encountered'"),
    # NVIDIA/nccl-tests#206: the limit on locked pages
    DistBackendError(f"{NCCL_SYSTEM}Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    # /dev/shm of a container, by NCCL and by torch
    DistBackendError(f"{NCCL_SYSTEM}Error while creating shared memory segment /dev/shm/nccl-QZ3 (size 9637888)"),
    RuntimeError("unable to write to file </torch_29_2893>: No space left on device (28)"),
    RuntimeError("unable to mmap 280 bytes from file </torch_5_1>: Invalid argument (22)"),
    OSError(errno.ENOSPC, "No space left on device"),
    # pytorch/pytorch#5040, said of every bus error
    RuntimeError(
        "DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are "
        "out of shared memory. Please try to raise your shared memory limit."
    ),
    # the kernel's killer or anybody else
    RuntimeError("DataLoader worker (pid 541564) is killed by signal: Killed. "),
    # a peer's end, by NCCL and gloo
    DistBackendError(
        "NCCL error in: NCCLUtils.hpp:219, remote process exited or there was a network error, NCCL 2.19.3\n"
    ),
    RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:20344"),
    RuntimeError(
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=600000)"
    ),
    # the limits on processes, on files and on time
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    RuntimeError("unable to open shared memory object </torch_7_8> in read-write mode: Too many open files (24)"),
    TimeoutError("out of memory"),
    # somebody's data
    KeyError("out of memory"),
    ValueError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("no sample is labelled 'CUDA out of memory'"),
    RuntimeError("expected MemoryError: got nothing"),
    RecursionError("maximum recursion depth exceeded"),
    SystemExit("out of memory"),
    KeyboardInterrupt(),
]

SYMPTOMS: list[tuple[BaseException, Kind]] = [
    # all from this machine under RLIMIT_DATA, but the last two
    (RuntimeError("could not create a primitive"), "onednn"),
    (SystemError("error return without exception set"), "python"),
    (SystemError("<function _find_and_load at 0x7f12> returned NULL without setting an exception"), "python"),
    # CPython's _thread, and C++'s std::thread
    (RuntimeError("can't start new thread"), "system"),
    (RuntimeError("Resource temporarily unavailable"), "system"),
]


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:70]


@pytest.mark.parametrize(
    ("error", "kind", "bytes_asked"), [pytest.param(*row, id=named(row[0])) for row in OUT_OF_MEMORY]
)
def test_what_the_libraries_say_of_it(error: BaseException, kind: Kind, bytes_asked: int | None) -> None:
    found = find(error)

    assert (found.kind, found.bytes_asked) == (kind, bytes_asked)
    assert "\n" not in found.message
    assert found.message.split(":")[0].endswith("Error")


@pytest.mark.parametrize("error", [pytest.param(error, id=named(error)) for error in OTHERWISE])
def test_what_is_something_else(error: BaseException) -> None:
    assert find(error) is None
    assert find(error, limited=True) is None


FULL: list[tuple[BaseException, Kind]] = [
    (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), "cublas"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "cudnn"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "cudnn"),
    (RuntimeError("cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built."), "cudnn"),
    (RuntimeError("GET was unable to find an engine to execute this computation"), "cudnn"),
]


@pytest.mark.parametrize(("error", "kind"), [pytest.param(*row, id=named(row[0])) for row in FULL])
def test_symptoms_of_libraries_count_on_a_full_device_alone(error: BaseException, kind: Kind) -> None:
    assert find(error) is None
    assert find(error, limited=True) is None
    found = find(error, full=True)
    assert found.kind == kind
    for other in OTHERWISE:
        if not any(str(other) == str(one) for one, _ in FULL):
            assert find(other, full=True) is None


@pytest.mark.parametrize(("error", "kind"), [pytest.param(*row, id=named(row[0])) for row in SYMPTOMS])
def test_symptoms_count_under_a_limit_alone(error: BaseException, kind: Kind) -> None:
    assert find(error) is None
    found = find(error, limited=True)
    assert found.kind == kind


def test_proof_goes_before_symptoms() -> None:
    error = SystemError("error return without exception set")
    error.__context__ = MemoryError()

    assert find(error, limited=True) == Oom("python", "MemoryError", None)


def test_the_message_is_the_line_that_says_so() -> None:
    asked = "Failed to CUDA calloc async 608 bytes"
    assert find(DistBackendError(f"{NCCL}{asked}")) == Oom("nccl", f"DistBackendError: {asked}", 608)

    inner = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    wrapped = torch.OutOfMemoryError(f"Caught OutOfMemoryError in replica 1 on device 1.\n{IN_WORKER}{inner}\nframe #0")
    assert find(wrapped) == Oom("cuda_allocator", inner, 20 * MIB)

    long = find(RuntimeError(f"CUDA out of memory. {'x' * 10_000}"))
    assert len(long.message) == MESSAGE_CHARS


def test_it_is_found_behind_other_errors() -> None:
    oom = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    def wrapped(*, context: bool = False, hidden: bool = False) -> BaseException:
        try:
            try:
                raise oom
            except RuntimeError as error:
                if context:
                    raise ValueError("while saving what was there")  # noqa: B904
                raise ValueError("partitioning failed") from (None if hidden else error)
        except ValueError as outer:
            return outer

    for error in (wrapped(), wrapped(context=True), wrapped(hidden=True)):
        found = find(error)
        assert found.bytes_asked == GIB

    # An explicit cause must not hide a context: both are walked.
    both = RuntimeError("step failed")
    both.__cause__, both.__context__ = ValueError("a cause"), oom
    assert find(both) is not None

    deep: BaseException = oom
    for depth in range(2_000):  # deeper than Python's stack
        outer = RuntimeError(f"wrapper {depth}")
        outer.__cause__ = deep
        deep = outer
    assert find(deep) is not None


def test_it_is_found_in_groups() -> None:
    inner = BaseExceptionGroup("threads", [KeyboardInterrupt(), MemoryError("in a thread")])
    group = ExceptionGroup("ranks", [ValueError("one"), ExceptionGroup("more", [OSError(errno.EPIPE, "pipe")])])
    assert find(group) is None
    group.__cause__ = inner
    assert find(group) == Oom("python", "MemoryError: in a thread", None)


def test_a_cycle_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__context__ = two, one
    assert find(one) is None
    two.__cause__ = MemoryError()
    assert find(one) is not None


# The real thing. Each scenario is a fork of a process that has imported all and then limits its own data segment.
REAL = """
import json, mmap, os, resource, sys
from pathlib import Path
import numpy, torch
from torch.utils.data import DataLoader, Dataset
from bench.runner.oom import find

torch.set_num_threads(1)


def limit(more):
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Hungry(Dataset):
    def __init__(self, eat):
        self.eat = eat

    def __len__(self):
        return 1

    def __getitem__(self, index):
        limit(2**26)
        return self.eat()


def backward():
    layers = [torch.nn.Linear(2048, 2048) for _ in range(4)]
    x = torch.randn(64, 2048)
    for layer in layers:
        x = layer(x)
    limit(2**20)
    x.sum().backward()


def load(eat):
    return lambda: next(iter(DataLoader(Hungry(eat), num_workers=1)))


def under_limit(eat):
    def run():
        limit(2**26)
        eat()
    return run


SCENARIOS = {
    "torch": under_limit(lambda: torch.empty(2**30, dtype=torch.uint8)),
    "backward": backward,
    "bytearray": under_limit(lambda: bytearray(2**30)),
    "numpy": under_limit(lambda: numpy.empty(2**30, numpy.uint8)),
    "mmap": under_limit(lambda: mmap.mmap(-1, 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
    "worker torch": load(lambda: torch.empty(2**30, dtype=torch.uint8)),
    "worker numpy": load(lambda: numpy.empty(2**30, numpy.uint8)),
    "worker python": load(lambda: bytearray(2**30)),
}
for name, run in SCENARIOS.items():
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            run()
            found = "no error"
        except BaseException as error:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            oom = find(error)
            found = oom and [oom.kind, oom.message, oom.bytes_asked]
        os.write(1, (json.dumps([name, found]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def real() -> dict[str, tuple[Kind, str, int | None]]:
    if sys.platform != "linux":
        pytest.skip("needs Linux, where RLIMIT_DATA counts private mappings")
    done = subprocess.run(
        [sys.executable, "-c", REAL], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("scenario", "kind", "bytes_asked"),
    [
        ("torch", "cpu_allocator", GIB),
        ("backward", "cpu_allocator", -1),
        ("bytearray", "python", None),
        ("numpy", "python", GIB),
        ("mmap", "system", None),
        ("worker torch", "cpu_allocator", GIB),
        ("worker numpy", "python", GIB),
        ("worker python", "python", None),
    ],
)
def test_the_real_thing(
    real: dict[str, tuple[Kind, str, int | None]], scenario: str, kind: Kind, bytes_asked: int | None
) -> None:
    found = real[scenario]
    assert found is not None
    if bytes_asked == -1:  # whichever tensor it was that did not fit: oneDNN's scratch may come first
        said = re.search(r"tried to allocate (\d+) bytes", found[1])
        assert said is not None, found
        bytes_asked = int(said[1])
    assert (found[0], found[2]) == (kind, bytes_asked), found


# The kernel's killer.
V1_CGROUP = "4:memory:/docker/abc\n1:cpu:/docker/abc\n0::/\n"
V1_MOUNTS = (
    "30 23 0:27 / /proc rw,relatime - proc proc rw\n"
    "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
V2_MOUNTS = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 7\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 123\noom_kill {}\npgfault 9\n"


def write(root: Path, **files: str) -> Path:
    where = {
        "cgroup": "proc/self/cgroup",
        "mounts": "proc/self/mountinfo",
        "vmstat": "proc/vmstat",
        "v1": "sys/fs/cgroup/memory/memory.oom_control",
        "v2": "sys/fs/cgroup/user.slice/job/memory.events",
    }
    for name, text in files.items():
        path = root / where[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_counters_of_cgroup_version_2(tmp_path: Path) -> None:
    write(tmp_path, cgroup="0::/user.slice/job\n", mounts=V2_MOUNTS, v2=EVENTS.format(0), vmstat=VMSTAT.format(5))
    before = counts(tmp_path)
    assert before == {"cgroup memory.events": 0, "/proc/vmstat": 5}
    assert killed_since(before, tmp_path) is None

    write(tmp_path, v2=EVENTS.format(1), vmstat=VMSTAT.format(6))
    words = "the kernel's out-of-memory killer, cgroup memory.events oom_kill 0 -> 1"
    assert killed_since(before, tmp_path) == words


def test_counters_of_cgroup_version_1_in_a_container(tmp_path: Path) -> None:
    write(tmp_path, cgroup=V1_CGROUP, mounts=V1_MOUNTS, v1=CONTROL.format(2), vmstat=VMSTAT.format(2))
    before = counts(tmp_path)
    assert before == {"cgroup memory.oom_control": 2, "/proc/vmstat": 2}

    write(tmp_path, v1=CONTROL.format(4))
    words = "the kernel's out-of-memory killer, cgroup memory.oom_control oom_kill 2 -> 4"
    assert killed_since(before, tmp_path) == words


def test_a_kill_elsewhere_on_the_machine_is_not_ours(tmp_path: Path) -> None:
    write(tmp_path, cgroup=V1_CGROUP, mounts=V1_MOUNTS, v1=CONTROL.format(0), vmstat=VMSTAT.format(0))
    before = counts(tmp_path)
    write(tmp_path, vmstat=VMSTAT.format(9))
    assert killed_since(before, tmp_path) is None


@pytest.mark.parametrize(
    "files",
    [
        {},  # another system's /proc
        {"cgroup": "0::/\n", "mounts": V2_MOUNTS},  # the root of version 2 has no memory.events
        {"cgroup": "0::/../other\n", "mounts": V2_MOUNTS},  # outside of what the container is shown
        {"cgroup": V1_CGROUP, "mounts": V1_MOUNTS.replace("/docker/abc", "/docker/xyz"), "v1": CONTROL.format(0)},
    ],
)
def test_without_a_cgroup_the_machine_is_asked(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    assert counts(tmp_path) == {}
    assert killed_since({}, tmp_path) is None

    write(tmp_path, vmstat=VMSTAT.format(3))
    before = counts(tmp_path)
    write(tmp_path, vmstat=VMSTAT.format(4))
    assert killed_since(before, tmp_path) == "the kernel's out-of-memory killer, /proc/vmstat oom_kill 3 -> 4"


def test_a_kernel_that_does_not_count_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, cgroup=V1_CGROUP, mounts=V1_MOUNTS, v1="oom_kill_disable 0\nunder_oom 0\n", vmstat="pgfault 9\n")
    assert counts(tmp_path) == {}


SERVER = """
import os, sys
from bench.machine.oom_kill import counts, killed_since

before = counts()
for eat in (False, True):
    child = os.fork()
    if child == 0:
        if eat:
            held = bytearray(2**28)
            held[::4096] = b"x" * len(held[::4096])
            os._exit(0)
        os.kill(os.getpid(), 9)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), killed_since(before), sep="|", flush=True)
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 64 MiB, in which a process can run out of memory for real."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (v1, "memory.limit_in_bytes") if (v1 / "memory.limit_in_bytes").exists() else (v2, "memory.max")
    folder = parent / f"bench-test-oom-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs the right to make a cgroup: {error}")
    try:
        try:
            (folder / limit).write_text(str(64 * MIB))
        except OSError as error:
            pytest.skip(f"needs a cgroup with a memory controller: {error}")
        yield folder
    finally:
        folder.rmdir()


def test_a_real_kill_is_told_from_another(small_cgroup: Path) -> None:
    join = f"open({str(small_cgroup / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid()))\n"
    done = subprocess.run(
        [sys.executable, "-c", join + SERVER], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )

    assert done.returncode == 0, done.stderr
    by_hand, by_kernel = (line.split("|") for line in done.stdout.splitlines())
    assert by_hand == ["9", "None"]
    assert by_kernel[0] == "9"
    assert by_kernel[1].startswith("the kernel's out-of-memory killer, cgroup memory.")
    assert by_kernel[1].endswith("oom_kill 0 -> 1")


# Native code that aborts.
@pytest.mark.parametrize(
    ("log", "source"),
    [
        # GNU's libstdc++; liquorleaf/OmniGS#10, a thread of libtorch; LLVM's libc++; Rust
        (
            "step 3\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "abort",
        ),
        (
            "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory. T",
            "cuda_abort",
        ),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  [enforce fail at a.cpp:127]"
            f" err == 0. {CPU}",
            "abort",
        ),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\nCUDA k",
            "cuda_abort",
        ),
        ("libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc\n", "abort"),
        ("memory allocation of 1073741824 bytes failed\n", "abort"),
        # pytorch/pytorch#126544, a broken context; a peer; words in passing; nothing
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0 "
            "Rank 2] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
            "encountered",
            None,
        ),
        (
            "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection closed by peer",
            None,
        ),
        ("terminate called after throwing an instance of 'std::bad_array_new_length'\n", None),
        ("warning: code that catches std::bad_alloc hides it\n", None),
        ("", None),
    ],
)
def test_what_a_log_ends_with(log: str, source: str | None) -> None:
    assert abort_source(log) == source


def test_a_real_abort() -> None:
    new = "import ctypes; new = ctypes.CDLL('libstdc++.so.6')._Znwm; new.argtypes = [ctypes.c_size_t]; new(2**62)"
    done = subprocess.run([sys.executable, "-c", new], capture_output=True, text=True, check=False, timeout=30)
    if "libstdc++.so.6" in done.stderr:
        pytest.skip(f"needs libstdc++: {done.stderr.splitlines()[-1]}")

    assert done.returncode == -signal.SIGABRT
    assert abort_source(done.stderr) == "abort"
