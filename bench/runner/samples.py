"""The batches of one rank: the workload's samples in order, without an end."""

import dataclasses
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset, default_collate, default_convert
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from bench import processes
from bench.errors import SamplesError, WorkloadError, one_line
from bench.records.cell import Cell
from bench.runner.forward import Batch
from bench.workloads import Workload

Collate = Callable[[list[Any]], Batch]
Worst = Callable[[Any, int], Sequence[Any]]
"""`Workload.worst_batch`."""
COLLATE = "collate(samples) of the workload makes a batch of a list of samples, as a DataLoader's collate_fn does"


class Samples(NamedTuple):
    """The samples of a workload, and what makes a batch of some of them."""

    dataset: Dataset[Any]
    """It has a length."""
    collate: Collate


def samples_of(cell: Cell, task: Workload) -> Samples:
    """The workload's samples, the same on every rank even where torch draws them at once.

    They become a batch by the workload's ``collate``, else by the ``collate_fn`` of the samples, else by torch. Of a
    DataLoader count its dataset and its ``collate_fn``.

    Raises:
        WorkloadError: they have no length, or there are none.
    """
    torch.manual_seed(cell.measure.seed)
    takes_seed = bool(inspect.signature(task.dataset).parameters)
    samples: Any = task.dataset(cell.measure.seed) if takes_seed else task.dataset()  # type: ignore[call-arg]
    own = _unbound(getattr(task, "collate", None) or getattr(samples, "collate_fn", None))
    if isinstance(samples, DataLoader):
        own = None if own in (default_collate, default_convert) else own
        samples = samples.dataset
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
    return Samples(samples, own or stacked)


def _unbound(collate: Any) -> Any:
    """A function of the samples alone that stands in a class, where Python takes it for a method."""
    try:
        inspect.signature(collate).bind([])
    except (TypeError, ValueError):
        return getattr(collate, "__func__", collate)
    return collate


def stacked(samples: Sequence[Any]) -> Batch:
    """A batch as torch's ``default_collate`` makes it; of mappings and dataclasses as of dicts. None stays None.

    Raises:
        SamplesError: tensors of different shapes, or something that torch cannot stack.
    """
    plain = [_plain(sample) for sample in samples]
    try:
        return collate(plain, collate_fn_map={**default_collate_fn_map, type(None): _nothing})
    except (RuntimeError, TypeError, KeyError, AttributeError) as error:
        why = _why_not(plain) or (one_line(str(error), 200) if isinstance(error, TypeError) else None)
        if why is None:  # such as memory that ran out
            raise
        raise SamplesError(
            f"samples of the workload cannot be stacked to a batch: {why}",
            allowed="dicts, tuples or tensors, whose tensors have the same shapes in all samples",
            fix=f"or give the workload a collate: {COLLATE}",
        ) from error


def _plain(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return dict(sample)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return sample


def _nothing(batch: Sequence[None], **_: object) -> None:
    if any(value is not None for value in batch):
        raise TypeError("None in some samples, and a value in others")


def _why_not(parts: Sequence[Any], key: str = "") -> str | None:
    """What differs between samples, or is nothing that torch stacks; None if that is not found."""
    first, name = parts[0], key or "a sample"
    shapes = list(dict.fromkeys(map(_shape, parts)))
    inner: list[tuple[str, list[Any]]] = []
    if len(shapes) > 1:
        return f"{name} is {shapes[0]} in one sample and {shapes[1]} in another"
    if isinstance(first, Mapping):
        inner = [(f"{key}.{name}" if key else str(name), [part[name] for part in parts]) for name in first]
    elif isinstance(first, list | tuple):
        inner = [(f"{key}[{index}]", [part[index] for part in parts]) for index in range(len(first))]
    elif not (isinstance(first, str | bytes | int | float | None) or hasattr(first, "shape")):
        return f"{name} is {shapes[0]}, which torch cannot stack"
    return next((why for name, values in inner if (why := _why_not(values, name))), None)


def _shape(value: Any) -> str:
    """In words: what must be alike in all samples."""
    match value:
        case Mapping():
            return f"a dict with {', '.join(sorted(map(str, value)))}"
        case list() | tuple():
            return f"a {type(value).__name__} of {len(value)}"
        case _ if hasattr(value, "shape"):
            return str(tuple(value.shape))
        case _:
            kind = type(value)
            name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _or_error(collate: Collate, samples: list[Any]) -> Batch | SamplesError:
    """A loader's worker would raise its error with other words."""
    try:
        return collate(samples)
    except SamplesError as error:
        return error


class _Raising:
    """The batches of a loader; an error among them is raised."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return map(_no_error, self._loader)  # a generator would keep the last batch alive


def _no_error(batch: Batch) -> Batch:
    if isinstance(batch, SamplesError):
        raise batch
    return batch


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
    samples: Samples,
    accelerator: Accelerator,
    batch_per_rank: int,
    *,
    on_device: bool = True,
) -> Iterable[Batch]:
    """This rank's batches of ``samples``, as training uses them, without an end; ``on_device``, or left on the host."""
    pinned = accelerator.device.type != "cpu"
    accelerator.dataloader_config.non_blocking = pinned  # a copy of pinned memory need not wait for the device
    plain: DataLoader[Any] = DataLoader(
        samples.dataset,
        sampler=_Cycling(len(samples.dataset)),  # type: ignore[arg-type]  # checked by samples_of
        batch_size=batch_per_rank,
        collate_fn=partial(_or_error, samples.collate),
        drop_last=True,
        num_workers=cell.measure.dataloader_workers,
        prefetch_factor=cell.measure.dataloader_prefetch if cell.measure.dataloader_workers else None,
        pin_memory=pinned,
        worker_init_fn=_end_with_rank,
    )
    prepared: Iterable[Batch] = accelerator.prepare_data_loader(plain, device_placement=None if on_device else False)
    return _Raising(prepared)


def largest_of(
    cell: Cell, samples: Samples, accelerator: Accelerator, largest: Sequence[int] | Worst, batch_per_rank: int
) -> Iterable[Batch]:
    """Batches of the largest samples, the same on every rank, without processes that prepare them.

    Args:
        largest: their indices, or what names them.

    Raises:
        WorkloadError: the workload names others than so many.
    """
    here = cell.model_copy(update={"measure": cell.measure.model_copy(update={"dataloader_workers": 0})})
    if callable(largest):
        dataset: Any = worst_of(largest, samples.dataset, batch_per_rank)
    else:
        dataset = Subset(samples.dataset, list(itertools.islice(itertools.cycle(largest), batch_per_rank)))
    return loader_of(here, samples._replace(dataset=dataset), accelerator, batch_per_rank)


def worst_of(worst: Worst, samples: Any, size: int) -> list[Any]:
    """The samples that a workload names as its worst batch.

    Raises:
        WorkloadError: they are not ``size`` samples.
    """
    found = worst(samples, size)
    if not isinstance(found, Sequence) or len(found) != size:
        held = f"{len(found)} samples" if isinstance(found, Sequence) else f"a {type(found).__name__}"
        raise WorkloadError(
            f"worst_batch(samples, {size}) of the workload returned {held}", allowed=f"a list of {size}"
        )
    return list(found)


def _end_with_rank(_worker: int) -> None:
    processes.die_with_parent()
