"""`python -m bench.runner serve SPOOL PRELOADS SEARCH [MODULE...]`, or `... attempt FOLDER [--out FOLDER]`.

PRELOADS: modules to import beforehand, separated by commas; may be empty. SEARCH: a folder where modules are looked for
first, or empty.
"""

import gc
import os
import sys
from pathlib import Path

from bench import processes
from bench.machine import gpus


def main(arguments: list[str]) -> int:
    launcher = os.environ.get(processes.PARENT)
    processes.die_with_parent(int(launcher) if launcher else None)
    os.environ.update(gpus.by_index(os.environ))
    match arguments:
        case ["serve", folder, preloads, searched, *modules]:
            gc.disable()  # collecting during imports frees almost nothing and slows them by a sixth
            from bench.runner.server import Server

            server = Server(Path(folder), rank=_rank())
            server.serve([name for name in preloads.split(",") if name], searched or None, modules)
            return 0
        case ["attempt", folder]:
            return _attempt(Path(folder), Path(folder))
        case ["attempt", folder, "--out", out]:
            return _attempt(Path(folder), Path(out))
    print(__doc__, file=sys.stderr)  # noqa: T201
    return 2


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _attempt(folder: Path, out: Path) -> int:
    from bench.runner import attempt
    from bench.store import spool

    spec = spool.read(folder / "spec.json", spool.Spec)
    if spec is None:
        print(f"{folder / 'spec.json'}: no such file", file=sys.stderr)  # noqa: T201
        return 2
    # Past any clean-up that could hang: a rank that waits for another one would keep the launch alive.
    os._exit(0 if attempt.run(spec, out, _rank()) else 1)


sys.exit(main(sys.argv[1:]))
