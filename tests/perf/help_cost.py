"""`bench --help` against `python -c "import typer"`, in turn."""

import subprocess
import sys
import time
from statistics import median

ROUNDS = 15


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - start


rows = [(seconds("-m", "bench.cli", "--help"), seconds("-c", "import typer")) for _ in range(ROUNDS)]
ratios = [help_s / typer_s for help_s, typer_s in rows]
print(
    f"bench --help {median(row[0] for row in rows):.3f} s, import typer {median(row[1] for row in rows):.3f} s; "
    f"ratio {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), {ROUNDS} rounds"
)
