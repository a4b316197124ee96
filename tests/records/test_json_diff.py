"""Leaves of nested JSON, and where two differ."""

import pytest
from pydantic import JsonValue

from bench.records.json_diff import differing_keys, flat, same


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (1, 1, True), (1, True, False), (0, False, False), (1, 1.0, False), (None, None, True), ("1", 1, False),
        ([1, {"a": 1}], [1, {"a": 1}], True), ([1, {"a": 1}], [1, {"a": True}], False), ([1], [1, 1], False),
        ({"a": 1}, {"a": 1, "b": None}, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ],
)  # fmt: skip
def test_values_agree_as_json_has_them(one: JsonValue, other: JsonValue, alike: bool) -> None:
    assert same(one, other) == same(other, one) == alike


def test_leaves_have_dotted_paths_and_empty_objects_stay() -> None:
    nested: JsonValue = {"train": {"fused": None, "more": {}}, "batches": [1, 2]}
    assert flat(nested) == {"train.fused": None, "train.more": {}, "batches": [1, 2]}


def test_a_missing_value_differs_from_null() -> None:
    one, other = flat({"a": 1, "b": None, "c": {"d": 2}}), flat({"a": True, "c": {"d": 2}})
    assert differing_keys(one, other) == ["a", "b"]
    assert differing_keys(one, one) == []
