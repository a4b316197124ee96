"""Toy, of which one rank is slow: in its loader, in its forward pass, or on a core that another process uses."""

import os
import subprocess
import sys
import time
from typing import Literal

import toy

BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**5))"


class StragglerConfig(toy.ToyConfig):
    slow: Literal["none", "loader", "forward", "core"] = "none"
    slow_rank: int = 1
    slow_s: float = 0.1
    """In each step, for a loader and a forward pass."""
    batch: int = 4


class Toy(toy.Toy):
    Config = StragglerConfig

    def build(self):
        model = super().build()
        if self._is("forward"):
            model.blocks[1].register_forward_pre_hook(lambda *_: time.sleep(self.config.slow_s))
        if self._is("core"):
            core = max(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {core})  # the busy process inherits it
            model.busy = subprocess.Popen([sys.executable, "-c", BURN])
        return model

    def dataset(self, seed):
        samples = super().dataset(seed)
        if not self._is("loader"):
            return samples
        take, sleep_s = type(samples).__getitem__, self.config.slow_s / self.config.batch

        def slowly(self, index):
            time.sleep(sleep_s)
            return take(self, index)

        type(samples).__getitem__ = slowly
        return samples

    def _is(self, slow):
        return self.config.slow == slow and int(os.environ.get("RANK", "0")) == self.config.slow_rank
