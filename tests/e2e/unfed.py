"""Toy whose every sample takes a while to make."""

import time
from typing import Any

import toy


class ToyConfig(toy.ToyConfig):
    sample_s: float = 0.0


class Toy(toy.Toy):
    Config = ToyConfig

    def dataset(self, seed: int) -> Any:
        sample_s, samples = self.config.sample_s, super().dataset(seed)

        class Slow(type(samples)):
            def __getitem__(self, index: int):
                time.sleep(sample_s)
                return super().__getitem__(index)

        return Slow()
