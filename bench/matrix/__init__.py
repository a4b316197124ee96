"""YAML -> Matrix (validated) -> cells."""

from bench.matrix.auto import num_processes
from bench.matrix.expansion import expand, left_out, run_plan
from bench.matrix.load import load
from bench.matrix.matrix_file import Launch, Matrix, json_schema

__all__ = ["Launch", "Matrix", "expand", "json_schema", "left_out", "load", "num_processes", "run_plan"]
