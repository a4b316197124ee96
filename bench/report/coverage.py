"""What a step leaves out of the model and of its samples: sentences for `doubts`. Pure."""

from collections.abc import Iterator, Sequence

from bench.records.rank_outcome import MUCH, Coverage
from bench.report.rows import Sampled
from bench.units import amount, percent


def is_invalid(measured: Sampled) -> bool:
    found = _of(measured)
    return max(found.without_gradient_share, found.not_run_share) > MUCH


def left_out(measured: Sampled) -> Iterator[str]:
    """Parameters without a gradient, and modules that do not run."""
    found = _of(measured)
    because = f"; {_keys(found)} of the samples are not used" if found.dropped_keys else ""
    if found.without_gradient:
        yield (
            f"{percent(found.without_gradient_share)} of the trained parameters ({amount(found.without_gradient)})"
            f" get no gradient: {_listed(found.without_gradient_names)}{because}."
        )
    if found.not_run and found.not_run_names != found.without_gradient_names:
        yield (
            f"{percent(found.not_run_share)} of the parameters ({amount(found.not_run)}) are in modules that never run:"
            f" {_listed(found.not_run_names)}{because}."
        )


def not_routed(measured: Sampled) -> Iterator[str]:
    found = _of(measured)
    if found.not_routed:
        share = percent(found.not_routed / found.parameters)
        yield f"{share} of the parameters are in modules, such as experts, to which warm-up routed no sample."


def much_not_routed(measured: Sampled) -> bool:
    found = _of(measured)
    return found.not_routed > MUCH * found.parameters


def dropped_keys(measured: Sampled) -> Iterator[str]:
    found = _of(measured)
    if found.dropped_keys and not (found.without_gradient or found.not_run):
        yield f"forward takes no {_keys(found)}: they are in the samples and not used."


def _of(measured: Sampled) -> Coverage:
    """Of all ranks: each stores the same, but for the samples."""
    dropped = {key: kind for rank in measured.ranks for key, kind in rank.raw.coverage.dropped_keys.items()}
    return measured.ranks[0].raw.coverage.model_copy(update={"dropped_keys": dropped})


def _keys(found: Coverage) -> str:
    return ", ".join(f"{key} ({kind})" for key, kind in found.dropped_keys.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
