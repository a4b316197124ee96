"""Toy that writes its secrets to the log and to its error."""

import os

import toy


class Toy(toy.Toy):
    def build(self):
        token = os.environ["HF_TOKEN"]
        if self.config.fault == "raise":
            raise RuntimeError(f"401 Unauthorized: {token}")
        print(f"signed in with {token}", flush=True)
        return super().build()
