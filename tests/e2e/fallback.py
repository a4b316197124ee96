"""Toy on ranks without the adapter of a CPU for FSDP: accelerate then silently runs plain DDP."""

from toy import Toy

from bench.runner import device

__all__ = ["Toy"]

_open = device.Cpu.open


def _without_adapter(self, family, train, **settings):
    return _open(self, "ddp", train, **settings)


device.Cpu.open = _without_adapter
