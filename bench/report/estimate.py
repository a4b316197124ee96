"""The time of a step of a plan: its lower bounds and what binds, and estimates from measured steps of the same device.
Pure.

Each bound is what the hardware's datasheet allows at most: operations over the peak rate, bytes that must be moved over
the bandwidth, bytes that ranks must send over the link (the roofline model: Williams et al. 2009,
doi:10.1145/1498765.1498785). A real step reaches none of them.

An estimate takes the time for a sum over kinds of work, of which each unit takes the same seconds in every cell. These
seconds are fitted to measured steps: least squares of the relative error, and none below zero. So an estimate knows no
cache, no overlap, and no kernel that is better than another. How far it is off is shown by leaving out each measured
cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.records.calibration import Pace
from bench.records.devices import DeviceSpec
from bench.records.forecast import Forecast
from bench.report.formulas import StepFormulas, computed_in_bytes

SPARE = 3
"""How many more cells than kinds of work a fit needs."""
BEYOND = 2.0
"""An estimate may lie beyond the measured amounts of work by this factor."""

Work = Mapping[str, float]
"""Amounts by kind: operations by dtype, bytes that operators move, bytes that ranks send, calls of operators."""


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
    return Bounds(
        compute_s=_compute_s(forecast, device, batch),
        memory_s=_over(_least_moved_bytes(forecast, batch), device.bandwidth_bytes_per_s),
        communication_s=_over(_least_sent_bytes(forecast, batch), device.link_bytes_per_s),
    )


def _over(amount: float | None, rate: float | None) -> float | None:
    return None if amount is None or rate is None else amount / rate


def _compute_s(forecast: Forecast, device: DeviceSpec, batch: int) -> float | None:
    total_s = 0.0
    for dtype, each in forecast.flops.items():
        rate = device.fp32_flops_per_s if dtype == "float32" else device.bf16_flops_per_s
        if rate is None:
            return None
        total_s += max(0.0, _formulas(forecast, batch).amount(each)) / rate
    return total_s


def _least_moved_bytes(forecast: Forecast, batch: int) -> float:
    """What must at least pass between the memory and the processors: weights are read in forward, and trained ones in
    backward too, the optimizer reads and writes master weights and moments, and what forward keeps is written and read
    once."""
    regime, formulas = forecast.regime, _formulas(forecast, batch)
    model, kept_bytes = formulas.state(), max(0.0, formulas.amount(forecast.kept_bytes))
    computed = (computed_in_bytes(forecast.cell) or 0) * (regime.parameters + regime.trained_parameters)
    stepped = model.stepped + model.moments if regime.optimizer_dtype else 0.0
    return formulas.amount((computed, 0.0)) + 2 * kept_bytes + 2 * stepped


def _least_sent_bytes(forecast: Forecast, batch: int) -> float | None:
    """None for a single rank, where there is no formula, and where it is only an upper bound, as for ZeRO-3."""
    if forecast.regime.world_size == 1 or forecast.regime.sharding == "zero3":
        return None
    by_operation = _formulas(forecast, batch).sent(gloo=False)
    if by_operation is None:
        return None
    # A switch may reduce on the way (NVLink SHARP): an all-reduce then sends half of what a ring does.
    return sum(each / 2 if operation == "all_reduce" else each for operation, each in by_operation.items())


def _formulas(forecast: Forecast, batch: int) -> StepFormulas:
    return StepFormulas(forecast.cell, batch, forecast.regime, forecast.unit_parameters, forecast.regathered)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The measured step of a cell at one batch."""

    cell: str
    """Its id."""
    work: Work | None
    step_s: float | None


def work(forecast: Forecast, batch: int) -> Work | None:
    """The work of one step at this batch per rank, of all ranks that share a device; None where it is not known.

    On a CPU, the ranks of a node share its cores, but each calls its operators by itself. ZeRO-3 counts as if it
    gathered each unit whenever it is used.
    """
    on_cpu = forecast.device == "cpu"
    formulas = _formulas(forecast, batch)
    of_rank = formulas.sent(gloo=on_cpu)
    if of_rank is None:
        return None
    sharing = forecast.cell.ranks_per_node if on_cpu else 1
    stepped_bytes = 0.0 if forecast.regime.optimizer_dtype is None else 2 * formulas.state().updated
    amounts = {
        "moved_bytes": sharing * (formulas.amount(forecast.moved_bytes) + stepped_bytes),
        "sent_bytes": sharing * sum(of_rank.values()),
        "operators": formulas.amount((forecast.operators, 0.0)),
        **{f"{dtype}_flops": sharing * formulas.amount(each) for dtype, each in forecast.flops.items()},
    }
    return {kind: amount for kind, amount in amounts.items() if amount > 0}


def paces(steps: Sequence[Step]) -> dict[str, Pace]:
    """The seconds for each unit of each kind of work. Empty if too few cells were measured to tell."""
    known = [(step.work, step.step_s) for step in steps if step.work and step.step_s]
    kinds = sorted({kind for amounts, _ in known for kind in amounts})
    if len({step.cell for step in steps if step.work and step.step_s}) < len(kinds) + SPARE:
        return {}
    from scipy.optimize import nnls  # takes longer to import than many reports

    most = {kind: max(amounts.get(kind, 0.0) for amounts, _ in known) for kind in kinds}
    shares = [[amounts.get(kind, 0.0) / most[kind] / step_s for kind in kinds] for amounts, step_s in known]
    try:
        seconds, _ = nnls(shares, [1.0] * len(known))
    except RuntimeError:  # it did not converge, as with kinds of work that grow alike (scipy#22884)
        return {}
    return {
        kind: Pace(
            seconds=float(found) / most[kind],
            least=min(amounts[kind] for amounts, _ in known if kind in amounts),
            most=most[kind],
        )
        for kind, found in zip(kinds, seconds, strict=True)
    }


def estimate_s(work: Work | None, known: Mapping[str, Pace]) -> float | None:
    """The time of a step; None without paces, and where its work is of another kind or size than what was measured."""
    if not work or not known or not known.keys() >= work.keys():
        return None
    if not all(known[kind].least / BEYOND <= amount <= known[kind].most * BEYOND for kind, amount in work.items()):
        return None
    return sum(known[kind].seconds * amount for kind, amount in work.items())


def left_out(steps: Sequence[Step]) -> list[float | None]:
    """The estimate of each step from those of the other cells."""
    others = {cell: paces([step for step in steps if step.cell != cell]) for cell in {step.cell for step in steps}}
    return [estimate_s(step.work, others[step.cell]) for step in steps]
