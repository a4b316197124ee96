"""YAML -> Matrix (validated) -> cells.

load.py             reads a matrix file and applies the overrides of the command line
bundled.py          the matrices that come with bench
matrix_file.py      the fields of a matrix file, and its JSON Schema
combinations.py     axes, include and exclude -> combinations, each with its backend and batches
expansion.py        combinations -> cells
auto.py             resolves `auto` on this machine: ranks, memory, preset
select.py           --backend, --select and --exclude
claims_file.py      reads the claims of a matrix or of a separate file
script.py           a command in the place of a workload
accelerate_file.py  reads the user's accelerate config
validation.py       plain values -> validated data, with errors in a user's words
yaml_file.py        YAML -> plain values, with the line of each for error messages
"""

from bench.matrix.auto import num_processes
from bench.matrix.expansion import expand, run_plan
from bench.matrix.load import load
from bench.matrix.matrix_file import Launch, Matrix, json_schema

__all__ = ["Launch", "Matrix", "expand", "json_schema", "load", "num_processes", "run_plan"]
