"""`make cuda-dry`: rank servers with the CUDA build of torch, over drivers that are made up.

It shows what imports do to a server on a machine with GPUs, and no more: nothing is computed.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_nvml import TWO

from bench import backends
from bench.launch import attempt_files
from bench.launch.executor import Context
from bench.launch.rank_servers import RankServers, World
from bench.launch.watch import Limits
from bench.records.cell import Attempt, Cell, Measure, Train
from bench.records.machine import Hardware
from bench.records.rank_outcome import RankError
from bench.workloads import load

pytestmark = pytest.mark.dry

HARDWARE = Hardware(device="cuda", devices=2, cores=2, memory_bytes=80 * 2**30)
POLICY = load("pi07")


def cell(backend: str) -> Cell:
    return Cell(
        backend=backend,
        workload="pi07",
        options=POLICY.Config().model_dump(mode="json"),
        num_processes=2,
        mixed_precision="bf16",
        train=Train(compile="unit"),
        measure=Measure(),
    )


@dataclass(frozen=True)
class Served:
    """Two rank servers that have imported everything, and which functions of CUDA's driver were called."""

    servers: RankServers
    calls: Path

    def callers(self, function: str = "") -> set[int]:
        """Processes that have called it; any, without a name."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return {int(line.split()[0]) for line in lines if line.endswith(function)}


@pytest.fixture(scope="module")
def served(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dry")
    library = nvml_library.parent / "libcuda.so.1"
    source = str(Path(__file__).with_name("fake_cuda.c"))
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run(["cc", *flags, "-o", str(library), source], check=True)
    context = Context(
        hardware=HARDWARE,
        new_folder=lambda: folder,
        preloads={2: {module for backend in backends.BACKENDS for module in backends.preloads(cell(backend))}},
        modules=["bench.model.policy", "bench.workloads.huggingface.model", "bench.workloads.huggingface.samples"],
        waiting=lambda _: None,
        note=print,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(library.parent))
        patch.setenv("FAKE_CUDA_CALLS", str(folder / "calls"))
        patch.setenv("FAKE_NVML_GPUS", ";".join(TWO))
        patch.setenv("FAKE_NVML_DRIVER", "580.65.06")
        patch.setenv("FAKE_NVML_CUDA", "13000")
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        servers = RankServers(folder, World(ranks=2, nodes=1), context)
        try:
            problem = servers.wait_ready()
            assert problem is None, problem
            yield Served(servers, folder / "calls")
        finally:
            servers.close()


def test_no_import_asks_cuda_for_anything(served: Served) -> None:
    import torch

    assert torch.version.cuda is not None, "this torch is built without CUDA: `make cuda-dry` installs the other"
    assert served.callers() == set()
    assert [state.unforkable for state in served.servers.states()] == [None, None]


def test_a_server_has_loaded_what_it_would_with_gpus(served: Served) -> None:
    """Else the first test says nothing."""
    for state in served.servers.states():
        mapped = Path(f"/proc/{state.pid}/maps").read_text()
        assert "libnvidia-ml.so.1" in mapped
        assert "libtorch_cuda.so" in mapped
        assert "libnccl.so" in mapped


@pytest.mark.parametrize("backend", ["ddp", "fsdp2", "zero2"])
def test_a_forked_child_uses_cuda_and_reports_while_its_server_stays_as_it_was(
    served: Served, tmp_path: Path, backend: str
) -> None:
    attempt = Attempt(cell=cell(backend), batch_per_rank=1)
    for name, text in attempt_files.files(attempt, POLICY.units, "cuda", dict(os.environ), str(tmp_path)).items():
        (tmp_path / name).write_text(text)
    before = served.callers("cuInit")
    result = served.servers.run(tmp_path, Limits(300, None), lambda _: None)
    assert result.launcher_error is None
    assert [rank.rank for rank in result.ranks] == [0, 1]
    children = served.callers("cuInit") - before
    assert children
    servers = {state.pid for state in served.servers.states()}
    assert not servers & served.callers()
    for rank in result.ranks:
        assert isinstance(rank, RankError)
        print(rank.error)  # shown with -s: what CUDA says of the made-up driver
        assert "CUDA" in rank.error or "no GPUs" in rank.error
        assert "forked subprocess" not in rank.error
    assert [state.unforkable for state in served.servers.states()] == [None, None]
