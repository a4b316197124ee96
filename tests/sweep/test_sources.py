"""Which files decide a result: real packages on disk, and the bundled workload."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import workloads
from bench.records.sources import differing, named
from bench.sweep import sources

FILES = {
    "digested/__init__.py": "",
    "digested/nets.py": "def build():\n    from digested_beside import helper\n    return helper\n",
    "digested/deep/layer.py": "",
    "digested/.#nets.py": "an editor's lock",
    "digested/notes.txt": "",
    "digested_beside.py": "import json, digested_far.part as part\n",
    "digested_far/part.py": "import bench.runner\n",
    "digested_apart.py": "",
}

Written = Callable[[str], sources.Sources]


@pytest.fixture
def digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Imports a module of the files above as a workload's, and gives its sources."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "digested/dangling.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.syspath_prepend(tmp_path)

    def of(module: str) -> sources.Sources:
        importlib.import_module(module)
        return {name: digest for name, digest in sources.of(f"{module}:Any").items() if not name.startswith("bench/")}

    yield of
    for name in [name for name in sys.modules if name.startswith("digested")]:
        del sys.modules[name]


def test_a_package_counts_whole_with_what_it_imports_from_beside_it(digested: Written) -> None:
    assert set(digested("digested.nets")) == {
        "digested/__init__.py",
        "digested/nets.py",
        "digested/deep/layer.py",
        "digested_beside.py",
        "digested_far/part.py",
    }
    assert "digested_beside" not in sys.modules  # found, not imported


def test_a_module_counts_with_what_it_imports(digested: Written) -> None:
    assert set(digested("digested_beside")) == {"digested_beside.py", "digested_far/part.py"}
    assert set(digested("digested_apart")) == {"digested_apart.py"}


def test_an_edited_file_is_another_source_and_an_equal_one_is_not(digested: Written, tmp_path: Path) -> None:
    before = digested("digested.nets")
    (tmp_path / "digested_far/part.py").write_text("import bench.runner\n")
    (tmp_path / "digested_apart.py").write_text("edited = True\n")
    assert digested("digested.nets") == before
    (tmp_path / "digested/deep/layer.py").write_text("edited = True\n")
    (tmp_path / "digested/deep/new.py").write_text("")
    changed = differing(before, digested("digested.nets"))
    assert changed == ("digested/deep/layer.py", "digested/deep/new.py")
    assert named(changed) == "digested/deep/layer.py and 1 more file"


def test_the_bundled_workload_and_the_runner_count() -> None:
    workloads.load("pi07")
    found = sources.of("pi07")
    theirs = {"model/policy.py", "model/workload.py"}
    assert theirs | {f"bench/{name}.py" for name in ("runner/steps", "backends/registry", "machine/numa")} <= set(found)
    assert not any(name.startswith(("bench/report/", "tests/")) for name in found)
    assert not any(name.startswith("/") for name in found)


def test_a_script_counts_with_the_files_that_its_command_names_and_what_they_import(tmp_path: Path) -> None:
    texts = {
        "train.py": "import nets.deep\nimport torch\n",
        "nets/deep.py": "",
        "sub/entry.py": "",
        "config.yaml": "a: 1\n",
        "data.bin": "x",
        "other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = ["python", "train.py", "--config", "config.yaml", "--data", "data.bin", "-m", "sub.entry", "{batch}"]
    found = sources.of_script(tmp_path, command)
    theirs = {name for name in found if not name.startswith("bench/")}
    assert theirs == {"train.py", "nets/deep.py", "config.yaml", "sub/entry.py"}
    (tmp_path / "nets/deep.py").write_text("x = 1\n")
    assert differing(found, sources.of_script(tmp_path, command)) == ("nets/deep.py",)


def test_a_script_in_a_folder_below_imports_from_its_own_folder(tmp_path: Path) -> None:
    for name, text in {"src/train.py": "import nets\n", "src/nets.py": "", "conf/a.yaml": "", "nets2.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = ["python", str(tmp_path / "src/train.py"), "--config=conf/a.yaml", "x" * 300 + ".py"]
    found = sources.of_script(tmp_path, command)
    assert {name for name in found if not name.startswith("bench/")} == {"src/train.py", "src/nets.py", "conf/a.yaml"}


def test_a_module_of_a_command_counts_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name, text in {"own/train.py": "from .nets import deep\n", "own/nets.py": "", "beside.py": ""}.items():
        (tmp_path / name).write_text(text)
    found = sources.of_script(tmp_path, ["python", "-m", "own.train", "-m", "/models/x"])
    assert {name for name in found if not name.startswith("bench/")} == {"own/train.py", "own/nets.py"}


def test_only_models_of_transformers_depend_on_how_bench_makes_them() -> None:
    workloads.load("pi07")
    made = "bench/workloads/huggingface/model.py"
    assert made in sources.of("hf:gpt2")
    assert made not in sources.of("pi07")
    assert "bench/workloads/load.py" in sources.of("pi07")
