"""Mistakes of a workload: every attempt would repeat them, so the first one ends the run and nothing is stored."""

from bench.errors import InputError
from bench.records.outcome import Failed, Ok, Outcome

_OF_SAMPLES = "SamplesError: "
_RAISED = ("WorkloadError: ", _OF_SAMPLES)
_ALLOWED = "allowed: "


def mistake_in(outcome: Outcome, where: str | None) -> InputError | None:
    """What a rank said of the workload that does not keep to its protocol; None for all other outcomes.

    ``where``: the place in the matrix that names the workload.
    """
    if not (isinstance(outcome, Failed) and outcome.fault == "workload"):
        return None
    problem, *more = (line.strip() for line in outcome.reason.splitlines())
    problem = next((problem.removeprefix(word) for word in _RAISED if problem.startswith(word)), problem)
    allowed = next((line.removeprefix(_ALLOWED) for line in more if line.startswith(_ALLOWED)), None)
    fix = next((line for line in more if not line.startswith(_ALLOWED)), None)
    return InputError(problem, where=where, field="workload.name", allowed=allowed, fix=fix)


def is_of_samples(outcome: Outcome) -> bool:
    """Whether samples could not become a batch. Another batch may have succeeded before: one sample always does."""
    return isinstance(outcome, Failed) and outcome.reason.startswith(_OF_SAMPLES)


def found_units(outcome: Outcome) -> str | None:
    """What to say of units that the workload leaves to be found; None for an attempt that does not show them."""
    if not isinstance(outcome, Ok):
        return None
    if not (units := outcome.ranks[0].units):
        return "units: none, because the model repeats no block; it is sharded as a whole"
    return f"units: {', '.join(units)}, the blocks that the model repeats; `units` in the workload replaces them"
