"""The bundled policy on samples that lack their subgoals on rank 1."""

import os

from model.workload import Pi07


class Partial(Pi07):
    def dataset(self, seed):
        from model.data import Samples

        class Lacking(Samples):
            def __getitem__(self, index):
                sample = super().__getitem__(index)
                if os.environ.get("RANK") == "1":
                    sample = {key: value for key, value in sample.items() if not key.startswith("subgoal")}
                return sample

        return Lacking(self.config, seed)
