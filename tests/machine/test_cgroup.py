"""What the control group grants, and the hardware within it."""

from pathlib import Path

import pytest

from bench import machine
from bench.machine import cgroup
from bench.machine.gpus import Gpu

GIB = 2**30
TWO = [Gpu("Example GPU", 80 * GIB, "GPU-8f2a11"), Gpu("Example GPU", 80 * GIB, "GPU-91bc22")]


V2 = ("0::/job/step\n", "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
V1 = (
    "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
    "28 23 0:25 / /mnt rw - tmpfs  rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
)
UNLIMITED = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("group", "files", "cores", "memory_bytes"),
    [
        (V2, {"job/step/cpu.max": "150000 100000\n", "job/step/memory.max": f"{GIB}\n"}, 2, GIB),
        (V2, {"job/step/cpu.max": "50000 100000\n", "job/step/memory.max": "max\n"}, 1, None),
        (V2, {"job/step/cpu.max": "max 100000\n", "job/cpu.max": "300000 100000\n", "memory.max": f"{GIB}"}, 3, GIB),
        (V2, {"job/step/memory.max": f"{4 * GIB}\n", "job/memory.max": f"{2 * GIB}\n"}, None, 2 * GIB),
        (
            V1,
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "memory/job/memory.limit_in_bytes": f"{GIB}\n",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            2,
            GIB,
        ),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, None, None),
        (("", ""), {}, None, None),
    ],
)
def test_what_the_control_group_grants(
    tmp_path: Path, group: tuple[str, str], files: dict[str, str], cores: int | None, memory_bytes: int | None
) -> None:
    control_group(tmp_path, group, files)
    assert cgroup.cores(tmp_path) == cores
    assert cgroup.memory_bytes(tmp_path) == memory_bytes


def test_a_mount_point_whose_name_is_not_utf_8_is_no_obstacle(tmp_path: Path) -> None:
    control_group(tmp_path, V2, {"job/step/memory.max": f"{GIB}\n"})
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.write_bytes(b"28 23 0:25 / /mnt/caf\xe9\x0b rw - tmpfs  rw\n" + mounts.read_bytes())
    assert cgroup.memory_bytes(tmp_path) == GIB


def control_group(root: Path, group: tuple[str, str], files: dict[str, str]) -> None:
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": group[0], "proc/self/mountinfo": group[1], **named}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_host_of_which_less_is_granted_is_that_much(gpus: list[Gpu], tmp_path: Path) -> None:
    whole = machine.detect({}, tmp_path)
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000 100000\n", "job/step/memory.max": f"{2**26}\n"})
    assert machine.detect({}, tmp_path) == whole.model_copy(update={"cores": 1, "memory_bytes": 2**26})
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000000 100000\n", "job/step/memory.max": UNLIMITED})
    assert machine.detect({}, tmp_path) == whole


def test_a_gpu_s_memory_is_no_control_group_s(gpus: list[Gpu], tmp_path: Path) -> None:
    gpus += TWO
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000 100000\n", "job/step/memory.max": f"{2**26}\n"})
    found = machine.detect({}, tmp_path)
    assert (found.cores, found.memory_bytes) == (1, 80 * GIB)
