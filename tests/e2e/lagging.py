"""Toy, of which one rank starts late and sleeps in every step."""

import os
import time

import toy


class LaggingConfig(toy.ToyConfig):
    lag_s: float = 0.05


class Toy(toy.Toy):
    Config = LaggingConfig

    def build(self):
        model = super().build()
        if os.environ.get("RANK") == "1":
            time.sleep(self.config.lag_s)
            model.blocks[1].register_forward_pre_hook(lambda *_: time.sleep(self.config.lag_s))
        return model
