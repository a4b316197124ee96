"""The batches of one rank: the workload's samples in order, without an end."""

import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from bench import processes
from bench.errors import WorkloadError
from bench.records.cell import Cell
from bench.runner.forward import Batch
from bench.workloads import Workload


def samples_of(cell: Cell, task: Workload) -> Dataset[Any]:
    """The workload's samples, the same on every rank even where torch draws them at once.

    Raises:
        WorkloadError: they have no length, or there are none.
    """
    torch.manual_seed(cell.measure.seed)
    takes_seed = bool(inspect.signature(task.dataset).parameters)
    samples = task.dataset(cell.measure.seed) if takes_seed else task.dataset()  # type: ignore[call-arg]
    by_index = hasattr(samples, "__getitem__") and not isinstance(samples, IterableDataset | Mapping)
    if not (hasattr(samples, "__len__") and by_index):
        raise WorkloadError(
            f"the workload's dataset is a {type(samples).__name__} without a length or an index",
            allowed="a map-style dataset, or a list: it has __len__ and __getitem__",
        )
    if not len(samples):
        raise WorkloadError(
            "the workload's dataset is empty", allowed="at least one sample; they are repeated as needed"
        )
    return samples


class _Cycling(Sampler[int]):
    """The indices of a dataset in order, and from the first again after the last."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        return (index % self._samples for index in itertools.count())

    def __len__(self) -> int:
        return sys.maxsize


def loader_of(
    cell: Cell,
    dataset: Dataset[Any],
    accelerator: Accelerator,
    batch_per_rank: int,
    *,
    on_device: bool = True,
) -> Iterable[Batch]:
    """This rank's batches of ``dataset``, as training uses them, without an end.

    Args:
        on_device: move each batch to the device; else it stays on the host.
    """
    pinned = accelerator.device.type != "cpu"
    accelerator.dataloader_config.non_blocking = pinned  # a copy of pinned memory need not wait for the device
    plain: DataLoader[Any] = DataLoader(
        dataset,
        sampler=_Cycling(len(dataset)),  # type: ignore[arg-type]  # checked by samples_of
        batch_size=batch_per_rank,
        drop_last=True,
        num_workers=cell.measure.dataloader_workers,
        prefetch_factor=cell.measure.dataloader_prefetch if cell.measure.dataloader_workers else None,
        pin_memory=pinned,
        worker_init_fn=_end_with_rank,
    )
    prepared: Iterable[Batch] = accelerator.prepare_data_loader(plain, device_placement=None if on_device else False)
    return prepared


def _end_with_rank(_worker: int) -> None:
    processes.die_with_parent()
