"""What `bench calibrate` learns about a machine."""

from typing import Annotated

from pydantic import Field

from bench.records.base import Amount, AtLeastOne, Frozen, Positive
from bench.records.machine import Machine


class Rates(Frozen):
    """The most that a CPU did in short trials; see bench/runner/rates.py."""

    bf16_flops_per_s: Positive
    """No less than in fp32, which an operator may compute in."""
    fp32_flops_per_s: Positive
    """Of matrix products, with all cores."""
    bandwidth_bytes_per_s: Positive
    """Of copies, read and written, with all cores; of caches, which are faster than memory, too."""
    link_bytes_per_s: Positive
    """That a rank sends to another one through gloo."""
    trials: AtLeastOne
    """Of each kind and size; the best one counts."""

    @property
    def of_a_device(self) -> dict[str, float | None]:
        """The fields of `bench.records.devices.DeviceSpec`."""
        return self.model_dump(exclude={"trials"})


class Calibration(Frozen):
    """How much launches of the same attempt differ on one machine, and what its CPU does at most."""

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
    rates: Rates | None = None
    """null: of a GPU, whose datasheet is known."""


class Pace(Frozen):
    """What one kind of work took in measured steps."""

    seconds: Amount
    """For each unit."""
    least: Positive
    most: Positive
    """The amounts of work that steps had."""


class Paces(Frozen):
    """What kinds of work took on one device, fitted to the steps of runs; see bench/report/estimate.py."""

    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    machine: Machine
    fitted_at: str
    """ISO 8601, UTC."""
    runs: tuple[str, ...]
    """Names of their folders."""
    steps: AtLeastOne
    """Measured ones, each of one cell at one batch."""
    paces: dict[str, Pace]
    """By kind of work."""
    off_median: Amount
    off_worst: Amount
    """By which share estimates were off for cells that were left out of the fit."""
