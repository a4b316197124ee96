"""Which of the user's variables a result records, and what it does not tell of them."""

import pytest

from bench.launch.recorded_environment import recorded_environment


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
