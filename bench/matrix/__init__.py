"""YAML -> Matrix (validated) -> cells.

load.py             reads a matrix file and the overrides of the command line
file.py             what it may hold, and its JSON Schema
auto.py             what `auto` comes to on this machine: ranks, memory, preset
expansion.py        axes, include and exclude -> cells
named.py            the backend and the batches of a combination
narrow.py           --backend, --select and --exclude
claims.py           what is expected of a run: of a matrix, or a file of its own
accelerate_file.py  the user's own accelerate config
validation.py       plain values to data; what is wrong with them, in a user's words
yaml_file.py        YAML to plain values, with the line of each for error messages
"""

from bench.matrix.auto import num_processes
from bench.matrix.expansion import expand
from bench.matrix.file import CellPlan, Launch, Matrix, json_schema
from bench.matrix.load import load

__all__ = ["CellPlan", "Launch", "Matrix", "expand", "json_schema", "load", "num_processes"]
