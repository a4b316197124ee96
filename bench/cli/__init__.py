"""The command line: parse, one library call, print, exit code. The only room that prints.

app.py       the application, and how bad input is told
measure.py   run, probe
reports.py   report
importing.py import
runs.py      compare, show
audits.py    audit collectives, audit dataloader, audit params
about.py     --version, schema, doctor
guide.py     guide

Libraries are imported inside the commands, so that `bench --help` is instant.
"""

from bench.cli import measure, reports, runs, audits, importing, about, guide  # noqa: I001 - the order in which --help names the commands
from bench.cli.app import app

__all__ = ["about", "app", "audits", "guide", "importing", "main", "measure", "reports", "runs"]


def main() -> None:
    app()
