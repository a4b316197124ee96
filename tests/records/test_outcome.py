"""A stored result: the time at which it started."""

import pytest
from examples import result
from pydantic import ValidationError

from bench.records.outcome import Result


@pytest.mark.parametrize("at", ["2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00"])
def test_a_time_stays_as_it_is_written(at: str) -> None:
    stored = result().model_copy(update={"started_at": at})
    assert Result.model_validate_json(stored.model_dump_json()) == stored


@pytest.mark.parametrize("at", ["yesterday", "", "2026-01-31T12:00:00", "2026-01-31", "2026-13-31T12:00:00+00:00"])
def test_what_is_no_time_with_an_offset_is_damaged(at: str) -> None:
    stored = result().model_copy(update={"started_at": at}).model_dump_json()
    with pytest.raises(ValidationError, match="is not a time such as 2026-01-31T12:00:00") as caught:
        Result.model_validate_json(stored)
    assert [error["loc"] for error in caught.value.errors()] == [("started_at",)]
