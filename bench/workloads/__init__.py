"""What bench trains: the protocol of a workload, and how one is found by its name. Imports no torch."""

from bench.workloads.load import BUNDLED, load, locate, modules_of, search
from bench.workloads.protocol import Definition, Flops, Workload

__all__ = ["BUNDLED", "Definition", "Flops", "Workload", "load", "locate", "modules_of", "search"]
