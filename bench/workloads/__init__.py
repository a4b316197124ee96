"""What bench trains: the protocol of a workload, and how one is found by its name. Imports no torch."""

from bench.workloads.load import BUNDLED, load, module_of
from bench.workloads.protocol import Flops, Workload

__all__ = ["BUNDLED", "Flops", "Workload", "load", "module_of"]
