"""Inspects this machine: its hardware, its GPUs, and what else it does during an attempt."""

from bench.machine.hardware import compiler, detect, has_own_memory, host_bytes, libraries, notes, record

__all__ = ["compiler", "detect", "has_own_memory", "host_bytes", "libraries", "notes", "record"]
