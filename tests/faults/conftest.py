import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from table import ROWS, FaultBench, markdown


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], FaultBench]]:
    """Creates a bench in its own folder. Processes that it leaves behind are ended, and fail the module."""
    made: list[FaultBench] = []

    def make(name: str) -> FaultBench:
        made.append(FaultBench(tmp_path_factory.mktemp(name)))
        return made[-1]

    yield make
    left = [process for bench in made for process in bench.processes()]
    for process in left:
        process.kill()
    assert not left


@pytest.fixture
def bench(benches: Callable[[str], FaultBench]) -> FaultBench:
    return benches("fault")


def pytest_sessionfinish() -> None:
    if ROWS and (file := os.environ.get("FAULTS_TABLE")):
        Path(file).write_text(markdown(ROWS))
