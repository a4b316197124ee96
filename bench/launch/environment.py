"""The environment variables of a launch: what bench adds to the user's, what it removes, and what results record."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.records.machine import Hardware
from bench.store import secrets

FOREIGN = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "TORCHELASTIC_", "PMI_", "OMPI_", "MV2_", "MPI_LOCALRANKID")
"""Prefixes of environment variables that would silently override a launch's config: accelerate's, other launchers'."""
RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a launcher that started bench itself; they would override a launch too."""


def added_environment(
    ranks_per_node: int, hardware: Hardware, user: Mapping[str, str], *, nodes: int = 1
) -> dict[str, str]:
    """Variables that bench adds to a launch. What ``user``, the environment that bench was started with, sets is kept,
    except for the variables of `FOREIGN` and, on a CPU, the choice of GPUs.
    """
    added = {"OMP_NUM_THREADS": str(max(1, hardware.cores // ranks_per_node)), "TOKENIZERS_PARALLELISM": "false"}
    if nodes == 1:  # gloo runs on GPUs, too, where an offload needs it; nodes: see bench/launch/slurm/node.py
        added["GLOO_SOCKET_IFNAME"] = "lo"
    added["TORCH_FR_BUFFER_SIZE"] = "2000"  # entries of torch's flight recorder, to explain hangs
    # torch.cuda.is_available() then asks NVML and leaves CUDA alone, so that a rank server can still fork: also on a
    # machine without a GPU, where torch may be built for CUDA, and DeepSpeed's import asks.
    added["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if hardware.device == "cuda":
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, in which names, memory and power are read
        added["TORCH_WARM_POOL"] = "0"  # no pool of compilers in each rank before one is needed
        # NCCL's monitor would abort a rank after 8 min without a word from its watchdog; bench names a hang itself.
        added["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        if "PYTORCH_ALLOC_CONF" not in user:
            added["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    else:
        added |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    # A job of Slurm may name GPUs that ranks on a CPU do not use.
    ours = (*FOREIGN, "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in added.items() if name not in user or name.startswith(ours)}


def launch_environment(user: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The complete environment of a launch: the user's, without the variables that would silently change a cell.

    accelerate also reads its settings from variables, and a launcher around bench leaves its rendezvous in others. The
    programs of this Python environment are first in PATH, so that DeepSpeed always builds with the same ninja.
    """
    kept = {name: value for name, value in user.items() if not name.startswith(FOREIGN) and name not in RENDEZVOUS}
    return {**kept, **added, "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"}


RECORDED = (
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
RECORDED_NAMES = ("GLIBC_TUNABLES", "LD_PRELOAD", "PYTHONHASHSEED")
"""Variables that a launch removes, such as accelerate's, have no effect and are left out."""
NOT_RECORDED = (
    *("NCCL_HOSTID", "NCCL_COMM_ID"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    "TORCH_EXTENSIONS_DIR",
)
"""They name a host or a folder of compiled programs, or have a field of their own in the record."""
_FOLDER = re.compile(r"(?<![\w.])[~\w.-]*/(?:[^\s:;,/]+/)*")
_GPU = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]+")


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The listed variables that are set, by name, without secrets, folders of paths, and names of machines or GPUs."""
    names = (name for name in sorted(environment) if name.startswith(RECORDED) or name in RECORDED_NAMES)
    return {name: _recorded(name, environment) for name in names if name not in NOT_RECORDED}


def _recorded(name: str, environment: Mapping[str, str]) -> str:
    value = secrets.mask(environment[name], environment)
    if home := environment.get("HOME"):
        value = value.replace(home, "~")
    text = _GPU.sub(r"\1-[id]", _FOLDER.sub("", value))[:200]
    return text.encode("utf-8", "backslashreplace").decode()
