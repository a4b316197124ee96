"""Toy whose step can be slowed down from outside. Like a change of code, the delay is not part of the cell."""

import json
import os
import time

import toy

PLANTED_S = "PLANTED_S"
"""Environment variable: JSON object from a width to the seconds that each step of it sleeps."""


class Toy(toy.Toy):
    def build(self):
        planted_s = json.loads(os.environ.get(PLANTED_S, "{}")).get(str(self.config.width), 0.0)
        model = super().build()
        model.register_forward_pre_hook(lambda *_: time.sleep(planted_s))
        return model
