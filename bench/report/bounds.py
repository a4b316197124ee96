"""Lower bounds of the time of a step, and what binds. Pure.

Each is what the hardware's datasheet allows at most: operations over the peak rate, bytes that must be moved over the
bandwidth, bytes that ranks must send over the link (the roofline model: Williams et al. 2009,
doi:10.1145/1498765.1498785). A real step reaches none of them.
"""

from dataclasses import dataclass

from bench.records.cell import Regime
from bench.records.devices import DeviceSpec
from bench.records.forecast import Forecast
from bench.report.communication import computed_in_bytes, payload_bytes, sent_bytes
from bench.report.theory import state


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Seconds of one step at one batch; None where the device's rate or the amount is not known."""

    compute_s: float | None
    memory_s: float | None
    communication_s: float | None

    @property
    def step_s(self) -> float | None:
        """The bound if communication, memory and compute overlap entirely."""
        return max(self._known.values(), default=None)

    @property
    def apart_s(self) -> float | None:
        """The bound if no communication overlaps with the rest."""
        rest = [value for name, value in self._known.items() if name != "communication"]
        return max(rest, default=0.0) + (self.communication_s or 0.0) if self._known else None

    @property
    def binds(self) -> str | None:
        """``compute``, ``memory`` or ``communication``: the largest of the three."""
        return max(self._known, key=self._known.__getitem__, default=None)

    @property
    def _known(self) -> dict[str, float]:
        named = {"compute": self.compute_s, "memory": self.memory_s, "communication": self.communication_s}
        return {name: value for name, value in named.items() if value is not None}


def bounds(forecast: Forecast, device: DeviceSpec, batch: int) -> Bounds:
    """The bounds of a step of ``forecast`` at this batch per rank."""
    regime = forecast.regime
    return Bounds(
        compute_s=_compute_s(forecast, device, batch),
        memory_s=_over(_moved_bytes(forecast, regime, batch), device.bandwidth_bytes_per_s),
        communication_s=_over(_sent_bytes(forecast, regime), device.link_bytes_per_s),
    )


def _over(amount: float | None, rate: float | None) -> float | None:
    return None if amount is None or rate is None else amount / rate


def _compute_s(forecast: Forecast, device: DeviceSpec, batch: int) -> float | None:
    total_s = 0.0
    for dtype, (fixed, each) in forecast.flops.items():
        rate = device.fp32_flops_per_s if dtype == "float32" else device.bf16_flops_per_s
        if rate is None:
            return None
        total_s += max(0.0, fixed + each * batch) / rate
    return total_s


def _moved_bytes(forecast: Forecast, regime: Regime, batch: int) -> float:
    """What must at least pass between the memory and the processors: weights are read in forward, and trained ones in
    backward too, the optimizer reads and writes masters and moments, and what forward keeps is written and read
    once."""
    model, (fixed, each) = state(regime), forecast.kept_bytes
    computed = (computed_in_bytes(forecast.cell) or 0) * (regime.parameters + regime.trained_parameters)
    stepped = model.stepped + model.moments if regime.optimizer_dtype else 0.0
    return computed + 2 * stepped + 2 * max(0.0, fixed + each * batch)


def _sent_bytes(forecast: Forecast, regime: Regime) -> float | None:
    """None for a single rank, where there is no formula, and where it is only an upper bound, as for ZeRO-3."""
    if regime.world_size == 1 or regime.sharding == "zero3":
        return None
    width = computed_in_bytes(forecast.cell)
    if width is None:
        return None
    units, again = forecast.unit_parameters, forecast.regathered
    if (payload := payload_bytes(regime, units, again=again, computed_in_bytes=width)) is None:
        return None
    sent = [(operation, sent_bytes(operation, size, regime.world_size)) for operation, size in payload.items()]
    # A switch may reduce on the way (NVLink SHARP): an all-reduce then sends half of what a ring does.
    return sum(one / 2 if operation == "all_reduce" else one for operation, one in sent if one is not None)
