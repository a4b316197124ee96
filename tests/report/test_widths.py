"""How wide the comparisons of a run are, for `bench run --until`."""

from collections.abc import Sequence

import pytest
from examples import ok, result

from bench.records.cell import Attempt
from bench.records.conditions import Conditions
from bench.records.outcome import Failed, Result
from bench.records.until import Until, Width
from bench.report.advice import CHOICES
from bench.report.tables.header import until_words
from bench.report.widths import FEWEST_LAUNCHES, compared_axes, leading_pairs, widths, widths_of


def launches(
    backend: str, times_s: Sequence[float], *, batch: int = 2, axes: dict[str, object] | None = None
) -> list[Result]:
    """One launch for each step time; its steps grow by 2 %."""
    found = []
    for number, time_s in enumerate(times_s, 1):
        steps = [time_s * (1 + 0.001 * step) for step in range(20)]
        one = result(ok(steps, steps, backend=backend), backend=backend, batch=batch, axes=axes)
        found.append(one.model_copy(update={"attempt": one.attempt.model_copy(update={"launch": number})}))
    return found


def test_a_comparison_is_not_known_before_both_sides_have_enough_launches() -> None:
    ddp, fsdp = launches("ddp", (0.1, 0.101, 0.099)), launches("fsdp", (0.12, 0.121, 0.119))
    assert FEWEST_LAUNCHES == 3
    [early] = widths([*ddp, *fsdp[:2]], ["backend"])
    [late] = widths([*ddp, *fsdp], ["backend"])
    assert early.half_width is None
    assert late.half_width is not None
    assert 0 < late.half_width < 0.2
    assert (late.of, late.against) == (fsdp[0].attempt, ddp[0].attempt)
    failed = fsdp[2].model_copy(update={"outcome": Failed(rank=0, phase="bwd", reason="planted")})
    [spoiled] = widths([*ddp, *fsdp[:2], failed], ["backend"])
    assert spoiled.half_width is None


def test_best_and_matched_batches_are_compared_and_each_pair_once() -> None:
    found = widths(
        [
            *launches("ddp", (0.1, 0.101, 0.099), batch=2),
            *launches("ddp", (0.15, 0.151, 0.149), batch=4),
            *launches("fsdp", (0.12, 0.121, 0.119), batch=2),
        ],
        ["backend"],
    )
    pairs = [(one.of.batch_per_rank, one.against.batch_per_rank) for one in found]
    assert pairs == [(2, 4), (2, 2)]


def test_the_leading_pairs_are_the_winner_with_its_runner_up_and_with_what_is_too_close() -> None:
    ddp, fsdp, close, far = (
        launches(backend, (step_s,))
        for backend, step_s in (("ddp", 0.1), ("fsdp", 0.11), ("zero2", 0.12), ("zero2", 0.2))
    )

    def one_task(results: Sequence[Result]) -> list[tuple[Attempt, Attempt]]:
        [task] = leading_pairs(results, [], [], CHOICES)
        return task

    def pairs(*results: Result) -> list[tuple[str, str]]:
        return [(of.cell.backend, to.cell.backend) for of, to in one_task(results)]

    assert pairs(*ddp, *fsdp, *close) == [("ddp", "fsdp"), ("ddp", "zero2")]
    assert pairs(*ddp, *fsdp, *far) == [("ddp", "fsdp")]
    assert pairs(*ddp, *far) == [("ddp", "zero2")]
    assert pairs(*ddp, *launches("ddp", (0.12,), batch=4), *far) == [("ddp", "zero2")]
    # Further launches do not choose what they decide.
    assert pairs(*ddp, *fsdp, *launches("zero2", (0.2, 0.05, 0.05))) == [("ddp", "fsdp")]


def test_what_other_work_slowed_down_is_launched_again() -> None:
    """It may lead without it, and no launch of other settings tells."""
    ddp, fsdp, slowed = launches("ddp", (0.1,)), launches("fsdp", (0.11,)), launches("zero2", (0.2,))
    unknown = {name: None for name in Conditions.model_fields if name != "gpus"}
    busy = Conditions.model_validate({**unknown, "others_cpu_share": 0.5})
    slowed = [one.model_copy(update={"conditions": busy}) for one in slowed]
    [task] = leading_pairs([*ddp, *fsdp, *slowed], [], [], CHOICES)
    assert [(of.cell.backend, to.cell.backend) for of, to in task] == [("ddp", "fsdp"), ("ddp", "zero2")]


def test_the_widths_of_pairs_follow_their_launches() -> None:
    ddp, fsdp = launches("ddp", (0.1, 0.101, 0.099)), launches("fsdp", (0.12, 0.121, 0.119))
    pairs = [(ddp[0].attempt, fsdp[0].attempt)]
    [early] = widths_of([*ddp, *fsdp[:2]], pairs)
    [late] = widths_of([*ddp, *fsdp], pairs)
    assert early == Width(*pairs[0], None)
    assert (late.of, late.against) == pairs[0]
    assert late.half_width == pytest.approx(widths([*ddp, *fsdp], ["backend"])[0].half_width)


def test_backends_are_compared_or_else_every_axis_that_varies() -> None:
    one, four = {"num_cams": 1}, {"num_cams": 4}
    same = [*launches("ddp", (0.1,), axes=one), *launches("ddp", (0.1,), axes=four)]
    assert compared_axes(same) == ["num_cams"]
    assert compared_axes([*same, *launches("fsdp", (0.1,), axes=one)]) == ["backend"]
    assert compared_axes(launches("ddp", (0.1,))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ended": "narrow", "comparisons": 3, "widest": 0.011},
            "added 6 launches in 40 s, for 95 % intervals of ±2.0 %: every comparison is that narrow (3 in all)",
        ),
        (
            {"ended": "budget", "budget_s": 1200.0, "comparisons": 3, "wide": 2, "widest": 0.05},
            "the budget of 20 min is spent, and 2 of 3 comparisons are still wider, the widest ±5.0 %",
        ),
        ({"ended": "launches", "comparisons": 1, "wide": 1}, "1 of 1 comparison is still wider, but 30 launches of"),
        ({"ended": "no_pairs"}, "there was nothing to compare"),
        ({}, "was interrupted"),
    ],
)
def test_the_report_says_how_it_ended(changes: dict[str, object], words: str) -> None:
    until = {"half_width": 0.02, "budget_s": None, "most_launches": 30, "launches": 6, "took_s": 40.0, **changes}
    said = until_words(Until.model_validate({**until, "ended_at": "2030-01-01T00:00:00Z"}))
    assert said.startswith("--until 2.0 % ")
    assert words in said
