"""Toy whose samples are slow to create, or are not dicts of tensors."""

import time
from typing import Any, Literal

import toy


class ToyConfig(toy.ToyConfig):
    sample_s: float = 0.0
    sample: Literal["dict", "tuple", "nested", "tensor", "text", "empty"] = "dict"


class Toy(toy.Toy):
    Config = ToyConfig

    def dataset(self, seed: int) -> Any:
        config, samples = self.config, super().dataset(seed)

        class Slow(type(samples)):
            def __getitem__(self, index: int):
                time.sleep(config.sample_s)
                sample = super().__getitem__(index)
                x, y = sample["x"], sample["y"]
                return {
                    "dict": sample,
                    "tuple": (x, y),
                    "nested": {"both": [x, {"y": y}], "name": "sample"},
                    "tensor": x,
                    "text": "sample",
                    "empty": {},
                }[config.sample]

        return Slow()
