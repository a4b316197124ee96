"""What it costs one rank of several to build a model: seconds, and peak memory of its host.

The other ranks are made up (torch's ``fake`` process group), so that a model for eight GPUs can be built on a small
machine. ``--whole``: as a workload without ``draw``, for comparison; a large preset then needs fewer layers.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="pi07")
    parser.add_argument("--backend", default="fsdp2")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the workload")
    given = parser.parse_args()
    fields = {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": given.ranks, "LOCAL_WORLD_SIZE": given.ranks}
    os.environ.update({name: str(value) for name, value in world.items()})
    os.environ.update(ACCELERATE_TORCH_DEVICE="cpu", DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    measure(given.preset, given.backend, given.ranks, fields, whole=given.whole)


def measure(preset: str, backend: str, ranks: int, fields: dict[str, object], *, whole: bool) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from bench import backends, workloads
    from bench.launch import attempt_files
    from bench.model.workload import Pi07
    from bench.records.cell import Attempt, Cell, Measure
    from bench.runner.device import Cpu, _status_bytes
    from bench.runner.preload import preload
    from bench.runner.server import launch_environment
    from bench.runner.setup import set_up

    if whole:
        del Pi07.draw
        Pi07.build = _whole  # type: ignore[assignment,method-assign]
    kind = workloads.load("pi07")
    options = kind.Config.model_validate({**kind.presets[preset], **fields}).model_dump(mode="json")
    cell = Cell(
        backend=backend,
        workload="pi07",
        options=options,
        num_processes=ranks,
        mixed_precision="bf16",
        measure=Measure(),
    )
    with tempfile.TemporaryDirectory() as folder:
        attempt = Attempt(cell=cell, batch_per_rank=1)
        for name, text in attempt_files.files(attempt, kind.units, "cpu", {}, folder).items():
            Path(folder, name).write_text(text)
        os.environ.update(launch_environment(Path(folder, "accelerate.yaml"), 1234))
    preload(backends.preloads(cell))
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    before, start = _status_bytes("VmHWM") or 0, time.perf_counter()
    job = set_up(cell, Cpu(), 1)
    took_s, peak = time.perf_counter() - start, (_status_bytes("VmHWM") or 0) - before
    counts = kind.parameter_counts(kind.Config.model_validate(options)) if kind.parameter_counts else {}
    parameters = sum(count for part, count in counts.items() if not part.endswith("_layer"))
    print(f"{backend}, one of {ranks} ranks, {parameters / 1e9:.2f} billion parameters: ", end="")
    print(f"{took_s:.1f} s, peak {peak / GIB:.2f} GiB of the host", flush=True)
    del job
    os._exit(0)  # the made-up ranks do not take part in the end


def _whole(self: object) -> object:
    """As a workload does that draws with torch's generator."""
    from torch import nn

    from bench.model.policy import Pi07Policy
    from bench.model.workload import Pi07

    assert isinstance(self, Pi07)
    policy = Pi07Policy(self.config)
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.02)
    return policy


if __name__ == "__main__":
    main()
