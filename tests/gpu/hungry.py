"""Toy whose one rank asks for memory in forward or in backward, and may say what its device has in use."""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import toy


class HungryConfig(toy.ToyConfig):
    ask_mib: int = 0
    way: Literal["forward", "backward"] = "forward"
    rank: int = 0
    step: int = 2
    note: str = ""
    """A file for the bytes in use on the device, as the driver counts them, after the last step."""


class Hungry(toy.Toy):
    Config: ClassVar = HungryConfig
    config: HungryConfig

    def build(self) -> Any:
        import torch

        config, model = self.config, super().build()

        def ask(like: torch.Tensor) -> None:
            if model.calls == config.step and int(os.environ.get("RANK", "0")) == config.rank and config.ask_mib:
                torch.zeros(config.ask_mib * 2**20, dtype=torch.uint8, device=like.device)

        class Through(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, loss: Any) -> Any:
                return loss.clone()

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                ask(gradient)
                return gradient

        def after(_module: Any, _arguments: Any, output: Any) -> Any:
            if config.note and output["loss"].device.type == "cuda":
                torch.cuda.synchronize()
                free, total = torch.cuda.mem_get_info()
                Path(config.note).write_text(str(total - free))
            if config.way == "backward":
                return {"loss": Through.apply(output["loss"])}  # type: ignore[no-untyped-call]
            ask(output["loss"])
            return output

        model.register_forward_hook(after)
        return model
