"""Claims: what people expect of a run, in a form that bench can judge. See bench/report/claims.py."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationError, WithJsonSchema, model_validator
from pydantic_core import InitErrorDetails, PydanticKnownError

from bench.records.base import Frozen
from bench.records.figures import METRICS
from bench.units import Kind, quantity


def _metric(value: str) -> str:
    if value not in METRICS:
        *names, last = map(repr, METRICS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return value


Metric = Annotated[
    str, AfterValidator(_metric), WithJsonSchema({"enum": [*METRICS], "title": "Metric", "type": "string"})
]


def _settings(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    batch = value.get("batch")
    if "batch" in value and batch != "best" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError("a batch is a whole number per rank, or best: the batch with each side's highest throughput")
    return value


Settings = Annotated[dict[str, JsonValue], AfterValidator(_settings)]
"""Values of a matrix's fields, and ``batch``: a number per rank, or ``best``."""
Amount = Annotated[
    str | float,
    WithJsonSchema({"type": ["number", "string"], "examples": ["11GB", "440ms", "1.27x"]}),
]
"""A number with a unit. Without one it is in base units: bytes, seconds, times."""


class Bounds(Frozen):
    """The expected range of a figure, ends included."""

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
    """The claim in words, as the report shows it."""
    metric: Metric
    of: Annotated[Settings, Field(min_length=1)]
    """The results that the claim is about: ``{backend: zero2}``."""
    against: Settings | None = None
    """The results to compare them with, by the same fields as ``of``. All other settings must be equal."""
    where: Settings = Field(default_factory=dict)
    """Conditions on both sides: ``{num_cams: 1, batch: 8}``."""
    difference: Bounds | None = None
    """Bounds of ``of`` minus ``against``: ``{at_least: 11GB}``."""
    ratio: Bounds | None = None
    """Bounds of ``of`` divided by ``against``: ``{at_least: 1.27x}``."""
    value: Bounds | None = None
    """Bounds of ``of`` alone."""

    @property
    def kind(self) -> Kind:
        """The unit of its bounds."""
        return "ratio" if self.ratio else METRICS[self.metric].kind

    @property
    def bounds(self) -> Bounds:
        bounds = self.difference or self.ratio or self.value
        assert bounds is not None
        return bounds

    @model_validator(mode="after")
    def _judgeable(self) -> Self:
        given = [name for name in ("difference", "ratio", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of difference, ratio and value is needed")
        if (self.against is None) != (given == ["value"]):
            raise ValueError("difference and ratio need against; value does not take it")
        if self.against is not None and set(self.against) != set(self.of):
            raise ValueError("of and against must name the same fields, such as {backend: zero2} and {backend: fsdp}")
        if self.against == self.of:
            raise ValueError("of and against are the same")
        if both := set(self.of) & set(self.where):
            raise ValueError(f"{min(both)} is in both of and where")
        ends = [self._end(given[0], name) for name in ("at_least", "at_most") if getattr(self.bounds, name) is not None]
        if ends != sorted(ends):
            raise ValueError("at_least is above at_most")
        return self

    def _end(self, bounds: str, name: str) -> float:
        """One end in base units. An error names the field of that end."""
        written = getattr(self.bounds, name)
        try:
            return quantity(written, self.kind)[0]
        except ValueError as error:
            wrong = InitErrorDetails(type="value_error", loc=(bounds, name), input=written, ctx={"error": error})
            raise ValidationError.from_exception_data("Claim", [wrong]) from error
