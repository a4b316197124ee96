"""Like `turns`, but one rank writes to its own folder while it measures."""

import os
from pathlib import Path
from typing import Any, ClassVar

from turns import SLOW, Turns, TurnsConfig


class ScribblerConfig(TurnsConfig):
    scratch: str


class Scribbler(Turns):
    Config: ClassVar = ScribblerConfig
    config: ScribblerConfig

    def build(self) -> Any:
        model, config = super().build(), self.config

        def scribble(*_: object) -> None:
            if config.turn == SLOW and os.environ["RANK"] == "1" and model.calls > 12:
                (Path(config.scratch) / "notes").write_bytes(b"x" * 2**16)

        model.register_forward_hook(scribble)
        return model
