"""What `bench calibrate` learns about a machine."""

from typing import Annotated

from pydantic import Field

from bench.records.base import Amount, AtLeastOne, Frozen
from bench.records.machine import Machine


class Calibration(Frozen):
    """How much launches of the same attempt differ on one machine."""

    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    machine: Machine
    measured_at: str
    """ISO 8601, UTC."""
    cells: AtLeastOne
    launches: AtLeastOne
    """Of each cell."""
    sd: Amount
    """Standard deviation of the logarithm of the mean step between launches: a share."""
    degrees: AtLeastOne
