"""The environment variables that a result records: those that change what ranks compute, or how fast."""

import re
from collections.abc import Mapping

from bench import secrets

PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DEEPSPEED_",
    "DNNL_",
    "DS_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEDNN_",
    "PYTORCH_",
    "TORCH_",
    "TORCHINDUCTOR_",
)
NAMES = ("GLIBC_TUNABLES", "LD_PRELOAD", "PYTHONHASHSEED")
"""Variables that a launch removes, such as accelerate's, have no effect and are left out."""
LEFT_OUT = (
    *("NCCL_HOSTID", "NCCL_COMM_ID"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    "TORCH_EXTENSIONS_DIR",
)
"""They name a host or a folder of compiled programs, or have a field of their own in the record."""
_FOLDER = re.compile(r"(?<![\w.])[~\w.-]*/(?:[^\s:;,/]+/)*")
_GPU = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]+")


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The listed variables that are set, by name, without secrets, folders of paths, and names of machines or GPUs."""
    names = (name for name in sorted(environment) if name.startswith(PREFIXES) or name in NAMES)
    return {name: _value(name, environment) for name in names if name not in LEFT_OUT}


def _value(name: str, environment: Mapping[str, str]) -> str:
    value = secrets.mask(environment[name], environment)
    if home := environment.get("HOME"):
        value = value.replace(home, "~")
    return _GPU.sub(r"\1-[id]", _FOLDER.sub("", value))[:200]
