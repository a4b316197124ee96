"""A toy whose rank 1 writes half a result and exits."""

import os
from pathlib import Path
from typing import Any, ClassVar

from toy import Toy, ToyConfig


class TearerConfig(ToyConfig):
    tears: bool = False


class Tearer(Toy):
    Config: ClassVar = TearerConfig
    config: TearerConfig

    def build(self) -> Any:
        model = super().build()

        def tear(*_: object) -> None:
            if self.config.tears and os.environ["RANK"] == "1" and model.calls == 3:
                opened = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
                beat = next(Path(file) for file in opened if file.endswith("/rank1.beat"))
                beat.with_name("rank1.json").write_text('{"kind": "ok", "rank": 1, "step_times_s": [0.1, 0.')
                os._exit(0)

        model.register_forward_hook(tear)
        return model
