"""The bundled policy; on request its samples lack their subgoals on rank 1."""

import os

from bench.model.config import Pi07Config
from bench.model.workload import Pi07


class Config(Pi07Config):
    lacking: bool = False


class Partial(Pi07):
    Config = Config

    def dataset(self, seed):
        from bench.model.data import Samples

        class Lacking(Samples):
            def __getitem__(self, index):
                sample = super().__getitem__(index)
                return {key: value for key, value in sample.items() if not key.startswith("subgoal")}

        lacking = self.config.lacking and os.environ.get("RANK") == "1"
        return (Lacking if lacking else Samples)(self.config, seed)
