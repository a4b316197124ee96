"""What an observed script did otherwise than its matrix says, in words with both numbers."""

import pytest

from bench.records.observed import Observed, other_batch, other_steps


def seen(**given: int | bool | None) -> Observed:
    return Observed.model_validate({"samples": 48, "forwards": 6, "optimizer": "AdamW", **given})


def test_steps_as_the_matrix_says_need_no_words() -> None:
    assert list(other_batch(seen(), 6, 8, 8)) == []
    assert list(other_steps(seen(), 6, 8, 8)) == []
    assert list(other_batch(seen(forwards=24, samples=192), 6, 8, 32)) == []
    assert list(other_steps(seen(forwards=24, samples=192), 6, 8, 32)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": 18}, "its model took 3 samples per forward, and the matrix says 8"),
        ({"samples": 34}, "its model took 5.667 samples per forward, and the matrix says 8"),
        ({"samples": None, "loaded_samples": 24}, "a step took 4 samples of a rank, and the matrix says 8"),
    ],
)
def test_other_samples_are_told(given: dict[str, int | None], words: str) -> None:
    assert list(other_batch(seen(**given), 6, 8, 8)) == [words]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"forwards": 24, "samples": 192}, "a step had 4 forwards, and the matrix says 1"),
        ({"forwards": 9}, "a step had 1.5 forwards, and the matrix says 1"),
        ({"optimizers": 3}, "a step ends when each of 3 optimizers has stepped"),
        ({"trainers": 2}, "2 processes trained as this rank, and one was measured: make them ranks, or launch one"),
    ],
)
def test_other_steps_are_told(given: dict[str, int | None], words: str) -> None:
    assert list(other_steps(seen(**given), 6, 8, 8)) == [words]


def test_without_calls_of_the_model_the_loaders_samples_count() -> None:
    assert seen(samples=None, loaded_samples=7).taken(48) == 7
    assert seen(loaded_samples=7).taken(48) == 48


def test_a_first_dimension_that_is_no_batch_does_not_count_where_the_loaders_gave_what_was_asked_for() -> None:
    """As where a head is called with all tokens of a batch, or a closure runs six times."""
    tokens = seen(samples=48 * 16, loaded_samples=48)
    assert tokens.taken(48) == 48
    assert list(other_batch(tokens, 6, 8, 8)) == []
    [words] = other_steps(tokens, 6, 8, 8)
    assert "a first dimension of 128 a step, and its DataLoaders gave 8 samples: these count" in words
    time_first = seen(samples=30, loaded_samples=48)
    assert time_first.taken(48) == 48
    assert list(other_batch(time_first, 6, 8, 8)) == []
    [words] = other_steps(time_first, 6, 8, 8)
    assert words.startswith("its model was called with a first dimension of 5 a step")


def test_views_of_a_sample_are_one_also_where_a_script_accumulates() -> None:
    """Two calls of the model for each batch, and two batches a step."""
    views = seen(forwards=24, samples=192, loaded_samples=96)
    assert views.taken(48) == 96
    assert list(other_batch(views, 6, 8, 8)) == ["its DataLoaders gave 16 samples a step, and the matrix says 8"]
    assert seen(samples=192, loaded_samples=56).taken(48) == 192  # samples that it trains on again


def test_samples_that_nobody_saw_are_told() -> None:
    unseen = seen(samples=None)
    assert unseen.taken(48) is None
    assert list(other_steps(unseen, 6, 8, 8)) == ["bench saw no samples: it takes those that the matrix says, 8 a step"]


def test_an_evaluation_within_the_steps_is_told() -> None:
    [words] = other_steps(seen(loaded_samples=72), 6, 8, 8)
    assert words.startswith("its DataLoaders gave it 12 samples a step, and its model trained on 8: ")
