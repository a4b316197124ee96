"""The command line: parse, one library call, print, exit code. The only room that prints.

Libraries are imported inside the commands, so that `bench --help` is instant.
"""

from bench.cli import audit, compare, doctor, guide, imports, report, run
from bench.cli.app import app

__all__ = ["app", "audit", "compare", "doctor", "guide", "imports", "main", "report", "run"]


def main() -> None:
    app()
