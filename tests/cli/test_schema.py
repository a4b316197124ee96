"""`bench schema`."""

import json
from pathlib import Path

import pytest
from commands import bench, stored

from bench.records.outcome import Result as Record

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("of", ["matrix", "result"])
def test_a_schema_is_json_schema(of: str) -> None:
    done = bench("schema", of)
    assert done.exit_code == 0
    schema = json.loads(done.output)
    assert schema["type"] == "object"
    assert schema["title"]
    assert schema["additionalProperties"] is False
    assert set(schema.get("required", [])) <= set(schema["properties"])
    named = {part.rpartition("/")[2] for part in _references(schema)}
    assert named <= set(schema.get("$defs", {}))


def _references(node: object) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return here + [found for item in node.values() for found in _references(item)]


def test_the_result_schema_names_the_fields_of_a_stored_result(tmp_path: Path) -> None:
    record = stored(tmp_path / "run")
    text = (tmp_path / "run" / "attempts" / record.attempt.slug / "result.json").read_text()
    assert Record.model_validate_json(text) == record
    assert set(json.loads(text)) == set(json.loads(bench("schema", "result").output)["properties"])
