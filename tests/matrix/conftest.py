"""A matrix from a text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_matrices import CPU, TOY

from bench.matrix import Matrix, load
from bench.records.machine import Hardware


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Matrix]:
    def load_text(text: str, hardware: Hardware = CPU, **given: Any) -> Matrix:
        path = tmp_path / "given.yaml"
        path.write_text(f"workload: {{name: '{TOY}'}}\n{text}" if "workload:" not in text else text)
        return load(path, hardware=hardware, **given)

    return load_text
