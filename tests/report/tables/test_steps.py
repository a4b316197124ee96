"""The sections on compilation and checkpoints, and the doubts that these raise."""

import math
from functools import partial

import pytest
from examples import doubt_sentences, launched, ok, rank, result, world

from bench.records.outcome import Result
from bench.records.rank_outcome import Checkpoint, Compilation
from bench.report.doubts import doubts
from bench.report.summary import summarize
from bench.report.tables.show import show
from bench.report.tables.steps import checkpoints, compilation, own_work, phases, ranks, steps
from bench.report.tables.table import Table

MIB = 2**20


def compiled(compile_s: float = 1.0, later: int = 0, **breaks: int) -> Compilation:
    return Compilation(compile_s=compile_s, graphs=2, graph_breaks=breaks, graphs_while_measured=later)


def saved(save_s: float = 0.1, resumed: tuple[float, ...] = (0.5, 0.4)) -> Checkpoint:
    return Checkpoint(save_s=save_s, load_s=0.05, stored_bytes=3 * MIB, next_losses=(0.5, 0.4), resumed_losses=resumed)


def of(*each: Compilation | Checkpoint) -> Result:
    """A result with one of these in each rank."""
    field = "compilation" if isinstance(each[0], Compilation) else "checkpoint"
    return result(world(*(rank(number).model_copy(update={field: one}) for number, one in enumerate(each))))


def cells(table: Table) -> list[str]:
    (row,) = table.rows
    return list(row[-4:])


def test_the_compiler_of_the_slowest_rank_is_shown() -> None:
    table = compilation(summarize([of(compiled(1.0), compiled(2.5, print_called=3))]))
    assert cells(table) == ["2500", "2", "3", "print_called"]


def test_a_checkpoint_shows_the_slowest_rank() -> None:
    assert cells(checkpoints(summarize([of(saved(0.1), saved(0.25))]))) == ["250", "50.00", "3.00 MiB", "the same"]


def test_losses_that_do_not_come_back_are_shown_and_doubted() -> None:
    summary = summarize([of(saved(), saved(resumed=(0.5, 0.5)))])
    assert cells(checkpoints(summary))[-1] == "differ by 20.0 %"
    assert any("its checkpoint does not restore training" in doubt for doubt in doubt_sentences(summary))


def test_losses_that_are_not_finite_tell_of_no_restored_training() -> None:
    summary = summarize([of(saved(resumed=(0.5, math.nan)))])
    assert cells(checkpoints(summary))[-1] == "not finite"
    assert any("restores training is unknown: a loss" in doubt for doubt in doubt_sentences(summary))


def test_a_difference_that_would_be_shown_as_none_is_none() -> None:
    assert cells(checkpoints(summarize([of(saved(resumed=(0.500005, 0.4)))])))[-1] == "the same"


def test_a_compiler_at_work_while_steps_are_measured_is_doubted() -> None:
    (doubt,) = doubt_sentences(summarize([of(compiled(), compiled(later=2))]))
    assert "torch.compile made 2 graphs while steps were measured" in doubt


def test_a_legend_says_which_launches_the_columns_are_of() -> None:
    def launch(step_s: float, loss: float, number: int) -> Result:
        return launched(result(ok((step_s,) * 3, (step_s,) * 3, losses=(loss,) * 3)), number)

    alone, several = launch(0.1, 1.0, 1), [launch(0.1, 1.0, 1), launch(0.4, 4.0, 2), launch(0.2, 2.0, 3)]
    for table in (steps, partial(phases, statistic="mean"), own_work, ranks):
        assert not [note for note in table(summarize([alone])).notes if "several launches" in note]
    assert [note for note in steps(summarize(several)).notes if "several launches" in note] == [
        "Of several launches, times are of all; slowest rank and losses are of the one with the median step."
    ]
    (row,) = steps(summarize(several)).rows
    assert (row[2:4], row[-1]) == (("233", "200"), "2.000")
    for table in (partial(phases, statistic="mean"), own_work, ranks):
        assert [note for note in table(summarize(several)).notes if "the median step" in note]


def test_a_compiler_at_work_in_another_launch_than_the_median_one_is_doubted() -> None:
    def launch(step_s: float, later: int, number: int) -> Result:
        ranks = [rank(n, (step_s,) * 3).model_copy(update={"compilation": compiled(later=later)}) for n in range(2)]
        return launched(result(world(*ranks)), number)

    summary = summarize([launch(0.1, 0, 1), launch(0.13, 2, 2), launch(0.1, 0, 3)])
    (doubt,) = doubts(summary)
    assert doubt.reason.startswith("launch 2: torch.compile made 2 graphs")
    assert doubt.share == pytest.approx(0.1)


def test_without_either_there_are_no_sections_and_no_doubts() -> None:
    summary = summarize([result(ok())])
    assert (compilation(summary).rows, checkpoints(summary).rows) == ((), ())
    assert doubt_sentences(summarize([of(saved(), saved())])) == []


def test_show_has_both() -> None:
    titles = [section.title for one in (compiled(), saved()) for section in show([of(one, one)], {})]
    assert {"Compilation", "Checkpoints"} <= set(titles)


def test_as_many_steps_after_loading_as_after_saving() -> None:
    with pytest.raises(ValueError, match="2 steps after saving, 1 after loading"):
        saved(resumed=(0.5,))
