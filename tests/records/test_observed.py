"""What an observed script did otherwise than its matrix says, in words with both numbers."""

import pytest

from bench.records.observed import Observed, other_batch, other_steps


def seen(**given: int | bool | None) -> Observed:
    return Observed.model_validate({"samples": 48, "forwards": 6, "optimizer": "AdamW", **given})


def test_steps_as_the_matrix_says_need_no_words() -> None:
    assert list(other_batch(seen(), 6, 8, 1)) == []
    assert list(other_steps(seen(), 6, 1)) == []
    assert list(other_batch(seen(forwards=24, samples=192), 6, 8, 4)) == []
    assert list(other_steps(seen(forwards=24), 6, 4)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": 18}, "its model took 3 samples per forward, and the matrix says 8"),
        ({"samples": 34}, "its model took 5.667 samples per forward, and the matrix says 8"),
        ({"samples": None, "loaded_samples": 24}, "a step took 4 samples of a rank, and the matrix says 8"),
    ],
)
def test_other_samples_are_told(given: dict[str, int | None], words: str) -> None:
    assert list(other_batch(seen(**given), 6, 8, 1)) == [words]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"forwards": 24, "samples": 192}, "a step had 4 forwards, and the matrix says 1"),
        ({"forwards": 9}, "a step had 1.5 forwards, and the matrix says 1"),
        ({"skipped_steps": 2}, "2 of 6 steps did not change the weights: their gradients overflowed"),
        ({"optimizers": 3}, "a step ends when each of 3 optimizers has stepped"),
    ],
)
def test_other_steps_are_told(given: dict[str, int | None], words: str) -> None:
    assert list(other_steps(seen(**given), 6, 1)) == [words]


def test_without_calls_of_the_model_the_loaders_samples_count() -> None:
    assert seen(samples=None, loaded_samples=7).taken == 7
    assert seen(loaded_samples=7).taken == 48
