"""The machine that a result was measured on."""

from bench.records.base import Amount, AtLeastOne, Count, Device, Frozen
from bench.units import UNKNOWN

LIBRARIES = ("torch", "accelerate", "deepspeed", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""Whose versions are recorded."""


class Hardware(Frozen):
    """The hardware that decides the cells of a matrix; detected without torch and without initializing CUDA."""

    device: Device
    """``cuda`` if the driver reports a GPU."""
    devices: Count
    """Number of GPUs; 0 on a CPU."""
    cores: AtLeastOne
    """CPU cores that this process may use, by its affinity and its control group's limit."""
    memory_bytes: AtLeastOne
    """Memory of one GPU. On a CPU, memory of the host, or the control group's limit."""
    bf16: bool = True
    """Whether the device multiplies in bf16. Without such instructions, bf16 is slower than fp32."""


class StatedHardware(Frozen):
    """The hardware as the source of imported figures describes it."""

    device: Device
    devices: Count
    """Number of GPUs; one per rank unless the source says otherwise."""
    memory_bytes: AtLeastOne | None
    """Memory of one GPU."""


class Machine(Frozen):
    """The machine and software of a result. No host name, no user, and only listed environment variables.

    null is unknown, such as what the source of imported figures does not say.
    """

    hardware: Hardware | StatedHardware
    accelerators: tuple[str, ...]
    """Name of each GPU."""
    driver: str | None
    cpu: str | None
    system: str | None
    python: str | None
    libraries: dict[str, str]
    """Version of each installed library."""
    bench: str | None
    git_commit: str | None
    """Commit of the folder from which bench was run."""
    git_dirty: bool | None
    allocator: str | None
    """Effective setting of the CUDA allocator."""
    threads: dict[str, str]
    """Variables such as OMP_NUM_THREADS that the user has set. Each rank's actual count is in its result."""

    power_limits_w: tuple[Amount | None, ...] = ()
    """The power limit in force of each GPU. Empty: not known."""
    environment: dict[str, str] | None = None
    """The user's variables that may change a measurement: see bench/launch/environment.py. null: not known."""

    def unlike(self, other: "Machine") -> list[str]:
        """The differences because of which results of the two machines must not be mixed in one run."""
        fields = ("hardware", "accelerators", "power_limits_w", "driver", "cpu", "libraries", "allocator", "threads")
        return [
            f"{name}: {_words(ours)} against {_words(theirs)}"
            for name in fields
            if (ours := getattr(self, name)) != (theirs := getattr(other, name))
            and not (name == "hardware" and _alike(self.hardware, other.hardware))
            and not (name == "power_limits_w" and None in (*ours, *theirs, *[None] * (not ours or not theirs)))
        ]

    def differences(self, other: "Machine") -> list[str]:
        """Differences that a report states: results of the two may stand in one run, and may not measure the same."""
        plain = [
            f"{name}: {ours} against {theirs}"
            for name in ("system", "python")
            if (ours := getattr(self, name)) != (theirs := getattr(other, name)) and ours and theirs
        ]
        if self.environment is None or other.environment is None:
            return plain
        one, two, threads = self.environment, other.environment, {*self.threads, *other.threads}  # `unlike` has these
        names = [name for name in dict.fromkeys([*one, *two]) if one.get(name) != two.get(name) and name not in threads]
        return plain + [f"{name}: {one.get(name, 'not set')} against {two.get(name, 'not set')}" for name in names]


def _words(value: object) -> str:
    match value:
        case Hardware() | StatedHardware():
            fields = value.model_dump(mode="json")
            return ", ".join(f"{name.replace('_', ' ')} {UNKNOWN if it is None else it}" for name, it in fields.items())
        case dict():
            return ", ".join(f"{name} {it}" for name, it in value.items()) or "none"
        case tuple():
            return ", ".join(map(str, value)) or "none"
    return UNKNOWN if value is None else str(value)


def _alike(one: Hardware | StatedHardware, other: Hardware | StatedHardware) -> bool:
    """Equal, except for a little memory: the kernel's share changes with each kernel update."""
    if not (isinstance(one, Hardware) and isinstance(other, Hardware)):
        return False
    close = abs(one.memory_bytes - other.memory_bytes) <= 0.02 * one.memory_bytes
    return close and one.model_copy(update={"memory_bytes": other.memory_bytes}) == other
