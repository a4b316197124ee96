"""The machine that a result comes from."""

from bench.records.base import AtLeastOne, Count, Device, Frozen
from bench.units import UNKNOWN


class Hardware(Frozen):
    """What expansion needs to know of this machine; found without initialising CUDA and without torch."""

    device: Device
    """``cuda`` when the driver reports a GPU."""
    devices: Count
    """Number of GPUs; 0 on a CPU."""
    cores: AtLeastOne
    """CPU cores that this process may use: by its affinity, and by what its control group grants."""
    memory_bytes: AtLeastOne
    """Memory of one GPU; on a CPU of the whole host, or what the control group leaves of it."""


class StatedHardware(Frozen):
    """What the source of imported figures says of its hardware."""

    device: Device
    devices: Count
    """Number of GPUs; one a rank unless the source says otherwise."""
    memory_bytes: AtLeastOne | None
    """Memory of one GPU."""


class Machine(Frozen):
    """Where a result comes from. Holds no host name, no user and nothing of the environment but named settings.

    null is unknown: of imported figures, what their source does not say.
    """

    hardware: Hardware | StatedHardware
    accelerators: tuple[str, ...]
    """Name of each GPU."""
    driver: str | None
    cpu: str | None
    system: str | None
    python: str | None
    libraries: dict[str, str]
    """Version of each library that was found."""
    bench: str | None
    git_commit: str | None
    """Commit of the folder that bench was run in."""
    git_dirty: bool | None
    allocator: str | None
    """The CUDA allocator's setting in force."""
    threads: dict[str, str]
    """OMP_NUM_THREADS and the like, where the user has set them; each rank's own count stands in its result."""

    def unlike(self, other: "Machine") -> list[str]:
        """The fields in which two machines differ so that their results must not stand in one run."""
        fields = ("hardware", "accelerators", "driver", "cpu", "libraries", "allocator", "threads")
        return [
            f"{name}: {_words(ours)} against {_words(theirs)}"
            for name in fields
            if (ours := getattr(self, name)) != (theirs := getattr(other, name))
            and not (name == "hardware" and _alike(self.hardware, other.hardware))
        ]


def _words(value: object) -> str:
    match value:
        case Hardware() | StatedHardware():
            named = value.model_dump(mode="json")
            return ", ".join(f"{name.replace('_', ' ')} {UNKNOWN if it is None else it}" for name, it in named.items())
        case dict():
            return ", ".join(f"{name} {it}" for name, it in value.items()) or "none"
        case tuple():
            return ", ".join(map(str, value)) or "none"
    return UNKNOWN if value is None else str(value)


def _alike(one: Hardware | StatedHardware, other: Hardware | StatedHardware) -> bool:
    """The same but for a little memory: the kernel's own share moves with each update."""
    if not (isinstance(one, Hardware) and isinstance(other, Hardware)):
        return False
    close = abs(one.memory_bytes - other.memory_bytes) <= 0.02 * one.memory_bytes
    return close and one.model_copy(update={"memory_bytes": other.memory_bytes}) == other
