"""Python runs this as it starts, where bench observes a script; then the `sitecustomize` that it hides, if any.

It imports next to nothing before the script imports torch.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(os.path.dirname(HERE))
AWAITED = ("torch", "deepspeed.runtime.engine")


class Awaiting:
    """A finder that lets the others find a module, and acts once the module has run."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in AWAITED:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _then(spec.loader, lambda: _observe(name))
        return spec


def _then(loader: Any, act: Callable[[], None]) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        act()

    loader.exec_module = exec_module


def _observe(name: str) -> None:
    """Nothing that goes wrong here may end the script."""
    try:
        from importlib import import_module
        from importlib.util import spec_from_file_location

        if "_bench" not in sys.modules:
            _run(spec_from_file_location("_bench", f"{BENCH}/__init__.py", submodule_search_locations=[BENCH]))
        with import_module("_bench.observe.device").added("RssAnon", "RssFile", "VmData"):
            import_module("_bench.observe.hooks").arrived(name)
    except Exception:
        from traceback import print_exc

        sys.stderr.write("bench cannot observe this process:\n")
        print_exc()


def _run(spec: ModuleSpec | None) -> None:
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules[spec.name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
if "BENCH_OBSERVE" in os.environ:
    sys.meta_path.insert(0, Awaiting())
_run(PathFinder.find_spec("sitecustomize"))
