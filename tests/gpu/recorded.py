"""The bundled policy, whose first rank leaves what its process saw: a trace of a step, and torch's flight recorder."""

import json
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

from bench.model.config import Pi07Config
from bench.model.workload import Pi07

TRACED = 8
"""Of warm-up, throughput window and phase window together: the first step whose phases are timed."""
NEWEST = 200


class RecordedConfig(Pi07Config):
    keep: str = ""
    """The folder for the files; none without it."""


class Recorded(Pi07):
    Config: ClassVar = RecordedConfig
    config: RecordedConfig

    def build(self) -> Any:
        model = super().build()
        if self.config.keep and os.environ.get("RANK", "0") == "0":
            model.register_forward_pre_hook(Keeper(Path(self.config.keep)))
        return model


class Keeper:
    """Traces one step, from its forward to that of the next, and keeps the recorder in the one after that."""

    def __init__(self, folder: Path) -> None:
        from torch import profiler

        self._folder, self._calls = folder, 0
        self._profile: Any = profiler.profile()

    def __call__(self, *_: Any) -> None:
        self._calls += 1
        if self._calls == TRACED:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profile.start()
        elif self._calls == TRACED + 1:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._folder / "trace.json.gz"))
        elif self._calls == TRACED + 2:
            (self._folder / "flight_recorder.json").write_text(json.dumps(recorded(), indent=1))


def recorded() -> dict[str, Any]:
    """All that the recorder says, with the newest entries alone, without a place in the code."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return {}
    c10d: Any = torch._C._distributed_c10d
    nccl = "nccl" in dist.get_backend()
    dump = getattr(c10d, "_dump_nccl_trace" if nccl else "_dump_fr_trace", None)
    content: dict[str, Any] = pickle.loads(dump(includeStackTraces=False)) if dump else {}
    return {**content, "entries": content.get("entries", [])[-NEWEST:], "backend": dist.get_backend()}
