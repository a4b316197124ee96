"""What CONTRIBUTING and DESIGN promise of the code as a whole."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from draw import ROOT

from bench import workloads
from bench.matrix.matrix_file import WorkloadChoice
from bench.workloads.huggingface.options import Options

MOST_STOPS = 25
WAY = re.search(
    r"## From the matrix to the table\n.*?```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
)


def found(dotted: str) -> object:
    """A function, of a module or of a class in one."""
    module, _, name = dotted.rpartition(".")
    if module.rpartition(".")[2][0].isupper():
        return getattr(found(module), name)
    return getattr(import_module(module), name)


def test_the_way_of_the_batch_is_short_and_its_functions_exist() -> None:
    stops = [line.split()[0] for line in WAY[1].splitlines()]
    assert 10 < len(stops) <= MOST_STOPS
    for stop in stops:
        assert callable(found(stop)), stop


def words_of(file: Path) -> Iterator[str]:
    """The texts of a module without docstrings."""
    tree = ast.parse(file.read_text("utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


KNOWN = {
    ("bench/workloads/load.py", "pi05"),
    ("bench/workloads/load.py", "pi07"),
    ("bench/matrix/matrix_file.py", "pi07"),  # the default of a matrix
}
"""Where the bundled policy is named."""


def test_bench_knows_a_workload_by_its_protocol_alone() -> None:
    """Nothing names the bundled policy, its presets, modules or fields, but for those of models of transformers."""
    bundled = {name: workloads.load(name) for name in workloads.BUNDLED}
    fields = {field for kind in bundled.values() for field in kind.Config.model_fields}
    fields -= {*Options.model_fields, *WorkloadChoice.model_fields}
    presets = {preset for kind in bundled.values() for preset in kind.presets}
    units = {unit for kind in bundled.values() for unit in kind.units or ()}
    elsewhere = [ROOT / "bench" / "model", ROOT / "bench" / "workloads" / "huggingface"]
    files = [file for file in (ROOT / "bench").rglob("*.py") if not any(map(file.is_relative_to, elsewhere))]
    assert len(files) > 200
    naming = {(str(file.relative_to(ROOT)), word) for file in files for word in words_of(file)}
    assert {pair for pair in naming if pair[1] in {*bundled, *fields, *presets, *units}} == KNOWN
