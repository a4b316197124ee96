"""Toy with a fault planted in one rank, in one phase. Every fault is real."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Literal

import toy

STEP = {"warm-up": 2, "measuring": 4}
"""The call of the model in which the fault strikes: two warm-up steps are followed by three measured ones."""
MEASURE = {"warmup_steps": 2, "steps": 3, "phase_steps": 1}
FLOOD_BYTES = 10**9
LOSSES = ("nan", "inf")


class Config(toy.ToyConfig):
    plant: str = "none"
    at: Literal["set-up", "warm-up", "measuring", "teardown"] = "measuring"
    way: Literal["forward", "backward"] = "forward"
    rank: int = 1


class Faulty(toy.Toy):
    Config = Config

    def build(self) -> Any:
        import torch

        config = self.config
        if config.at == "set-up":
            strike(config)
        model = super().build()

        def before(module: Any, _arguments: Any) -> None:
            if config.way == "forward" and module.calls + 1 == STEP.get(config.at):
                strike(config)

        class Through(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, loss: Any) -> Any:
                return loss.clone()

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                if model.calls == STEP.get(config.at):
                    strike(config)
                return gradient

        def after(module: Any, _arguments: Any, output: Any) -> Any:
            if config.way == "backward":
                return {"loss": Through.apply(output["loss"])}
            if config.plant in LOSSES and module.calls == STEP.get(config.at) and is_struck(config):
                return {"loss": output["loss"] * float(config.plant)}
            return output

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after)
        return model

    def dataset(self, seed: int) -> Any:
        samples = super().dataset(seed)
        if self.config.at == "teardown":
            samples.last = Last(self.config)
        return samples


class Last:
    """Strikes when the attempt releases its samples: all steps are measured, but nothing is written yet."""

    def __init__(self, config: Config) -> None:
        self.config, self.pid = config, os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self.pid:
            strike(self.config)


def is_struck(config: Config) -> bool:
    return int(os.environ.get("RANK", "0")) == config.rank


def strike(config: Config) -> None:
    if is_struck(config):
        _strike(config.plant)
    elif config.plant == "another collective":
        import torch

        torch.distributed.all_reduce(torch.ones(7))


def _strike(plant: str) -> None:  # noqa: PLR0912, PLR0915  a list
    import torch

    match plant:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "raise":
            raise ValueError("planted")
        case "surrogates":
            raise ValueError(f"no such file: {os.fsdecode(bytes([255, 254]))}")
        case "exit":
            os._exit(0)
        case "exit in a thread":
            thread = threading.Thread(target=os._exit, args=(0,))
            thread.start()
            thread.join()
        case "sys.exit":
            sys.exit(3)
        case "allocate":
            torch.empty(2**50)
        case "eat":
            eaten = [b""]
            while True:
                eaten.append(b"x" * 2**26)
        case "extra collective":
            torch.distributed.all_reduce(torch.ones(5))
        case "another collective":
            torch.distributed.broadcast(torch.ones(7), src=1)
        case "sleep":
            time.sleep(3600)
        case "busy":
            sum(itertools.repeat(0))  # never lets go of the interpreter
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "doze":
            time.sleep(3)
        case "flood":
            block = b"x" * (2**20 - 1) + b"\n"
            os.write(1, b"the first words\n")
            for _ in range(FLOOD_BYTES // len(block) + 1):
                os.write(1, block)
            os.write(1, b"the last words\n")
        case "flood and kill":
            _strike("flood")
            _strike("kill")
        case "leave":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        case "not UTF-8":
            os.write(1, b"\xff\xfe\x00 said in no encoding\n")
        case "not UTF-8 and kill":
            _strike("not UTF-8")
            _strike("kill")
