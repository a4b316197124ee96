"""`bench --help` against `import typer`, in turn: what bench adds to the one library that it cannot do without.

Both start with -S and find their packages through PYTHONPATH. An editable installation's finder, which `site` imports
into every process of the environment, is in neither of the two: an installation from a wheel has none, and it would
hide a part of the difference. bench starts as its console script does, not by -m, which imports runpy as well.
"""

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median

ROUNDS = 25
BOUND = 1.5
ROOT = Path(__file__).parents[2]
BENCH = "import sys; sys.argv[1:] = ['--help']; from bench.cli import main; main()"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])}


def seconds(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", program], env=ENVIRONMENT, check=True, capture_output=True)
    return time.perf_counter() - start


rows = [(seconds(BENCH), seconds("import typer")) for _ in range(ROUNDS)]
ratios = [help_s / typer_s for help_s, typer_s in rows]
print(
    f"bench --help {median(row[0] for row in rows):.3f} s, import typer {median(row[1] for row in rows):.3f} s; "
    f"ratio {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), {ROUNDS} rounds; bound {BOUND}"
)
