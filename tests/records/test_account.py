"""An account: its parts, and that it fits in the wall time."""

import pytest
from examples import result
from pydantic import ValidationError

from bench.records.account import Account
from bench.records.outcome import Result


def test_parts_are_in_the_order_of_an_attempt_and_all_are_known() -> None:
    assert list(Account(parts_s={"end": 1.0, "measure": 2.0, "launch": 3.0}).parts_s) == ["launch", "measure", "end"]
    with pytest.raises(ValidationError, match="no part coffee"):
        Account(parts_s={"coffee": 300.0})


def test_an_account_of_more_than_the_wall_time_is_impossible() -> None:
    stored = result(wall_s=10.0).model_dump_json()
    assert Result.model_validate_json(stored).account is None
    for parts_s, fits in ((10.0, True), (10.1, False)):
        edited = stored.replace('"account":null', f'"account":{{"parts_s":{{"measure":{parts_s}}}}}')
        assert edited != stored
        if fits:
            assert Result.model_validate_json(edited).account == Account(parts_s={"measure": parts_s})
        else:
            with pytest.raises(ValidationError, match=r"its account has 10.1 s, and it took 10 s"):
                Result.model_validate_json(edited)


def test_a_result_from_before_there_were_accounts_has_none() -> None:
    before = result().model_dump_json().replace('"account":null,', "")
    assert "account" not in before
    assert Result.model_validate_json(before).account is None
