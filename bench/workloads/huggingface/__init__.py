"""Workloads named ``hf:gpt2`` or ``hf:./my_model``: any model of transformers that has one of `TASKS`."""

from bench.workloads.huggingface.description import TASKS
from bench.workloads.huggingface.workload import PREFIX, define, modules

__all__ = ["PREFIX", "TASKS", "define", "modules"]
