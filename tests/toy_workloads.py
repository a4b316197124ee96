"""Workloads for tests that need no torch."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ToyConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    num_cams: int = Field(1, ge=1, le=8)
    attention: Literal["eager", "sdpa"] = "sdpa"
    grad_ckpt: bool = False
    width: int = 8
    scale: float = 1.0
    layers: tuple[int, ...] = (1, 2)

    @model_validator(mode="after")
    def _wide_enough(self) -> Self:
        if self.width < self.num_cams:
            raise ValueError(f"width={self.width} is less than num_cams={self.num_cams}")
        return self


class UnboundedConfig(ToyConfig):
    clip: float = float("inf")


class OpaqueConfig(ToyConfig):
    mask: object = object()


class Toy:
    """A workload by protocol only: it is never built."""

    Config: ClassVar[type[BaseModel]] = ToyConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"width": 8}, "large": {"width": 512, "scale": 2.0}}
    units: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ToyConfig) -> None: ...

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        return "large" if device == "cuda" or memory_bytes_per_rank > 2**36 else "tiny"

    def build(self) -> Any: ...

    def dataset(self, seed: int) -> Any: ...


class Unbounded(Toy):
    Config = UnboundedConfig


class Opaque(Toy):
    Config = OpaqueConfig


class Counted(Toy):
    @classmethod
    def parameter_counts(cls, config: ToyConfig) -> Mapping[str, int]:
        return {"all": 10**9}


def of_names(names: frozenset[str] = frozenset()) -> None:
    """A function whose option is a set."""


def of_bytes(value: bytes = b"\xff") -> None:
    """A function with an option that is no JSON value."""
