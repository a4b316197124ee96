"""`python -m bench.runner.programs FOLDER`: traces the programs that FOLDER/requests.json asks for.

bench/launch/torch_side.py starts it for `bench plan`. Writes KEY.json or KEY.failed.json for each.
"""

import os
import sys
from pathlib import Path

from bench import workloads
from bench.errors import InputError
from bench.runner.program import trace
from bench.store import secrets, spool
from bench.store.programs import NotTraced, ProgramRequests


def main(folder: Path) -> int:
    """Trace every request. Returns the exit code."""
    asked = spool.read(folder / "requests.json", ProgramRequests)
    if asked is None:
        print(f"{folder / 'requests.json'}: no such file", file=sys.stderr)  # noqa: T201
        return 2
    workloads.search(asked.workload_folder)
    for request in asked.requests:
        try:
            program = trace(request.cell, request.device, request.batches, cudnn=request.cudnn)
        except Exception as error:  # a model may raise anything
            kind = type(error).__name__
            why = (str(error).strip() or kind).splitlines()[0]
            said = why if isinstance(error, InputError) else f"{kind}: {why}"
            spool.write(folder / f"{request.key}.failed.json", NotTraced(reason=secrets.mask(said)[:400]))
        else:
            spool.write_text(folder / f"{request.key}.json", program.model_dump_json())
    return 0


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1])))
