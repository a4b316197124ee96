"""The environment of a launch: what bench adds, what stays, what is taken away, what a result records."""

import sys
from pathlib import Path

import pytest

from bench.launch.environment import added_environment, launch_environment, recorded_environment
from bench.records.machine import Hardware

CPU = Hardware(device="cpu", devices=0, cores=8, memory_bytes=2**34)
GPUS = Hardware(device="cuda", devices=2, cores=16, memory_bytes=2**36)
BOTH = ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_ALLOC_CONF": "backend:native"})


def test_what_a_launch_adds() -> None:
    always = {
        "OMP_NUM_THREADS": "4",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch may be built for CUDA
    }
    cpu = {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    assert added_environment(2, CPU, {}) == always | cpu
    assert added_environment(4, GPUS, {}) == always | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # a host may have unlike GPUs
        "TORCH_WARM_POOL": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    for hardware in (CPU, GPUS):
        assert "GLOO_SOCKET_IFNAME" not in added_environment(2, hardware, {}, nodes=2)


@pytest.mark.parametrize("user", BOTH)
def test_the_users_allocator_setting_stands_under_either_name(user: dict[str, str]) -> None:
    assert not any("ALLOC_CONF" in name for name in added_environment(2, GPUS, user))


@pytest.mark.parametrize("hardware", [CPU, GPUS], ids=["cpu", "cuda"])
def test_what_the_user_has_set_stays_but_for_accelerates_own_and_gpus_on_a_cpu(hardware: Hardware) -> None:
    for name in added_environment(2, hardware, {}):
        added = added_environment(2, hardware, {name: "mine"})
        assert (name in added) == (name.startswith("ACCELERATE_") or name == "CUDA_VISIBLE_DEVICES")


def test_a_launch_inherits_nothing_that_would_change_a_cell_unseen() -> None:
    user = {
        "HOME": "/home/of/the/user",
        "OMP_NUM_THREADS": "3",
        "PATH": "/usr/bin",
        "ACCELERATE_MIXED_PRECISION": "fp16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "FSDP_OFFLOAD_PARAMS": "true",
        "RANK": "7",
        "WORLD_SIZE": "8",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "other",
    }
    assert launch_environment(user, {"ACCELERATE_TORCH_DEVICE": "cpu"}) == {
        "HOME": "/home/of/the/user",
        "OMP_NUM_THREADS": "3",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }


@pytest.mark.parametrize(("ranks", "threads"), [(1, "8"), (2, "4"), (3, "2"), (8, "1"), (16, "1")])
def test_ranks_share_the_cores(ranks: int, threads: str) -> None:
    assert added_environment(ranks, CPU, {})["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("variables", "recorded"),
    [
        ({"NCCL_ALGO": "Ring", "CUDA_LAUNCH_BLOCKING": "1"}, {"NCCL_ALGO": "Ring", "CUDA_LAUNCH_BLOCKING": "1"}),
        (
            {"MALLOC_ARENA_MAX": "2", "NVIDIA_TF32_OVERRIDE": "0"},
            {"MALLOC_ARENA_MAX": "2", "NVIDIA_TF32_OVERRIDE": "0"},
        ),
        ({"TORCH_BLAS_PREFER_HIPBLASLT": "1", "GLOO_X": "y"}, {"TORCH_BLAS_PREFER_HIPBLASLT": "1", "GLOO_X": "y"}),
        ({"LD_PRELOAD": "/opt/a/libone.so:/b/two.so"}, {"LD_PRELOAD": "libone.so:two.so"}),
        ({"TORCH_HOME": "/home/planted_user_3"}, {"TORCH_HOME": "~"}),
        ({"CUDA_CACHE_PATH": "/home/planted_user_3/cache/cuda"}, {"CUDA_CACHE_PATH": "cuda"}),
        ({"NCCL_NET_PASSWORD": "planted_secret_6"}, {"NCCL_NET_PASSWORD": "[NCCL_NET_PASSWORD]"}),
        ({"NCCL_TOPO_FILE": "/opt/caf\udce9.xml"}, {"NCCL_TOPO_FILE": "caf\\udce9.xml"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2a11c3-11d2,1"}, {"CUDA_VISIBLE_DEVICES": "GPU-[id],1"}),
        ({"NCCL_HOSTID": "planted_host_4", "OMP_NUM_THREADS": "3"}, {}),
        ({"PYTORCH_ALLOC_CONF": "backend:native", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {}),
        ({"ACCELERATE_MIXED_PRECISION": "fp8", "FSDP_VERSION": "2"}, {}),
        ({"EDITOR": "vi", "PATH": "/bin"}, {}),
    ],
)
def test_listed_variables_are_recorded_without_secrets_and_folders(
    variables: dict[str, str], recorded: dict[str, str]
) -> None:
    found = recorded_environment({"HOME": "/home/planted_user_3", **variables})
    assert found == recorded
    assert "planted" not in str(found)
