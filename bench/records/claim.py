"""What people expect of a run, stated beforehand, in a form that can be judged. See bench/report/claims.py."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationError, WithJsonSchema, model_validator
from pydantic_core import InitErrorDetails

from bench.records.base import Frozen
from bench.records.phases import PHASE_NAMES
from bench.units import Kind, quantity

METRICS = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "capacity_share",
    "step_time_s",
    "samples_per_s",
    *PHASE_NAMES,
    "total",
)
"""Of the worst rank. Phases are means of the phase window."""
if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[METRICS]

KINDS: dict[str, Kind] = {
    "peak_allocated_bytes": "bytes",
    "peak_reserved_bytes": "bytes",
    "capacity_share": "ratio",
    "samples_per_s": "samples/s",
}
"""What a metric is measured in; seconds for the others."""


def _settings(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    batch = value.get("batch")
    if "batch" in value and batch != "best" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError("a batch is a whole number per rank, or best: each side at its highest throughput")
    return value


Settings = Annotated[dict[str, JsonValue], AfterValidator(_settings)]
"""Values of a matrix's fields, and ``batch``: a number per rank, or ``best``."""
Amount = Annotated[
    str | float,
    WithJsonSchema({"type": ["number", "string"], "examples": ["11GB", "440ms", "1.27x"]}),
]
"""With a unit; a plain number is in base units: bytes, seconds, times."""


class Bounds(Frozen):
    """Where a figure is expected to lie. Both ends belong to it."""

    at_least: Amount | None = None
    at_most: Amount | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least or at_most is needed")
        return self


class Claim(Frozen):
    """``zero2 holds at least 11 GB more than fsdp at num_cams 1, batch 8``, typed."""

    say: Annotated[str, Field(min_length=1, max_length=300)]
    """The claim in words, as it will stand in the report."""
    metric: Metric
    of: Annotated[Settings, Field(min_length=1)]
    """Which results it is about: ``{backend: zero2}``."""
    against: Settings | None = None
    """What they are set against, by the same fields as ``of``; they must agree in everything else."""
    where: Settings = Field(default_factory=dict)
    """What holds for both sides: ``{num_cams: 1, batch: 8}``."""
    difference: Bounds | None = None
    """Of ``of`` less ``against``: ``{at_least: 11GB}``."""
    ratio: Bounds | None = None
    """Of ``of`` by ``against``: ``{at_least: 1.27x}``."""
    value: Bounds | None = None
    """Of ``of`` alone."""

    @property
    def kind(self) -> Kind:
        """What its bounds are measured in."""
        return "ratio" if self.ratio else KINDS.get(self.metric, "s")

    @property
    def bounds(self) -> Bounds:
        found = self.difference or self.ratio or self.value
        assert found is not None
        return found

    @model_validator(mode="after")
    def _judgeable(self) -> Self:
        given = [name for name in ("difference", "ratio", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of difference, ratio and value is needed")
        if (self.against is None) != (given == ["value"]):
            raise ValueError("difference and ratio need against, and value goes without")
        if self.against is not None and set(self.against) != set(self.of):
            raise ValueError("of and against must name the same fields, such as {backend: zero2} and {backend: fsdp}")
        if self.against == self.of:
            raise ValueError("of and against are the same")
        if both := set(self.of) & set(self.where):
            raise ValueError(f"where repeats {min(both)} of of")
        ends = [self._end(given[0], name) for name in ("at_least", "at_most") if getattr(self.bounds, name) is not None]
        if ends != sorted(ends):
            raise ValueError("at_least is above at_most")
        return self

    def _end(self, bounds: str, name: str) -> float:
        """One end in base units; what is wrong with it is said of its own field."""
        written = getattr(self.bounds, name)
        try:
            return quantity(written, self.kind)[0]
        except ValueError as error:
            wrong = InitErrorDetails(type="value_error", loc=(bounds, name), input=written, ctx={"error": error})
            raise ValidationError.from_exception_data("Claim", [wrong]) from error
