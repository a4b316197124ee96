"""Estimates of the time of a step, from measured steps of the same device. Pure.

The time is taken for a sum over kinds of work, of which each unit takes the same seconds in every cell. These seconds
are fitted to measured steps: least squares of the relative error, and none below zero. So an estimate knows no cache,
no overlap, and no kernel that is better than another. How far it is off is shown by leaving out each measured cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.records.calibration import Pace
from bench.records.forecast import Forecast
from bench.report.communication import computed_in_bytes, payload_bytes, sent_bytes
from bench.report.theory import state

SPARE = 3
"""How many more cells than kinds of work a fit needs."""
BEYOND = 2.0
"""An estimate may lie beyond the measured amounts of work by this factor."""

Work = Mapping[str, float]
"""Amounts by kind: operations by dtype, bytes that operators move, bytes that ranks send, calls of operators."""


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
    sent = _sent_bytes(forecast)
    if sent is None:
        return None
    sharing = forecast.cell.ranks_per_node if forecast.device == "cpu" else 1
    fixed, each = forecast.moved_bytes
    amounts = {
        "moved_bytes": sharing * (fixed + each * batch + _stepped_bytes(forecast)),
        "sent_bytes": sharing * sent,
        "operators": float(forecast.operators),
        **{f"{dtype}_flops": sharing * (fixed + each * batch) for dtype, (fixed, each) in forecast.flops.items()},
    }
    return {kind: amount for kind, amount in amounts.items() if amount > 0}


def _stepped_bytes(forecast: Forecast) -> float:
    """The optimizer reads and writes masters, moments and gradients."""
    if forecast.regime.optimizer_dtype is None:
        return 0.0
    model = state(forecast.regime)
    return 2 * (model.stepped + model.moments + model.gradients)


def _sent_bytes(forecast: Forecast) -> float | None:
    """Of one rank. gloo has no reduce-scatter: torch runs an all-reduce for it."""
    regime, width = forecast.regime, computed_in_bytes(forecast.cell)
    if width is None:
        return None
    units, again = forecast.unit_parameters, forecast.regathered
    if (payload := payload_bytes(regime, units, again=again, computed_in_bytes=width)) is None:
        return None
    if forecast.device == "cpu" and "reduce_scatter" in payload:
        payload = {**payload, "all_reduce": payload.get("all_reduce", 0.0) + payload["reduce_scatter"]}
        del payload["reduce_scatter"]
    return sum(sent_bytes(operation, size, regime.world_size) or 0.0 for operation, size in payload.items())


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
    if not work or not known or not all(kind in known and _near(amount, known[kind]) for kind, amount in work.items()):
        return None
    return sum(known[kind].seconds * amount for kind, amount in work.items())


def _near(amount: float, pace: Pace) -> bool:
    return pace.least / BEYOND <= amount <= pace.most * BEYOND


def left_out(steps: Sequence[Step]) -> list[float | None]:
    """The estimate of each step from those of the other cells."""
    others = {cell: paces([one for one in steps if one.cell != cell]) for cell in {step.cell for step in steps}}
    return [estimate_s(step.work, others[step.cell]) for step in steps]
