"""Toy whose ranks disagree about a checkpoint."""

import os
import shutil
from typing import Literal

from toy import Toy, ToyConfig

from bench.runner import checkpoint

_usage = shutil.disk_usage
_save_and_load = checkpoint.save_and_load


class Full:
    """The disk of a node, as rank 0 alone may see it."""

    free = 1


class SavesConfig(ToyConfig):
    saves: Literal["all", "only_rank_0", "full_on_rank_0"]


class Saves(Toy):
    Config = SavesConfig

    def build(self):
        first = os.environ["RANK"] == "0"
        if self.config.saves == "full_on_rank_0" and first:
            checkpoint.shutil.disk_usage = lambda folder: Full()
        if self.config.saves == "only_rank_0" and not first:
            checkpoint.save_and_load = lambda *_: None
        return super().build()
