"""Toy that starts a process and forgets it."""

import subprocess

import toy


class Toy(toy.Toy):
    def build(self):
        subprocess.Popen(["sleep", "600"])
        return super().build()
