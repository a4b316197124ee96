"""What a script does, step by step: warm-up, then the measured window; then its record, and the end of the process."""

import contextlib
import os
import sys
import threading
import time
from typing import Any

import torch

from . import flight
from .device import Cpu, Cuda, added, device_of, ranks
from .files import RankFiles, Settings
from .model import WatchedModel, parameters_of, samples_in
from .phases import Phases
from .products import Computed, Products
from .pulse import beside
from .steps import Steps

MOST_NAMES = 3
LEAST_WARMUP = 3
"""Steps before the measured ones: the model is found after the first, its calls are seen in the second, and what it
computes in the third."""


class Observer:
    """Of one process. It ends the process after the last measured step, which all ranks end together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._warmup = max(settings.warmup_steps, LEAST_WARMUP)
        self._watching = contextlib.ExitStack()
        self.forget()

    def forget(self) -> None:
        """Begin anew: this process is a fork, which may train by itself, or not at all."""
        self._watching.close()  # a worker would watch what it computes for life
        self.observes = True
        """Until something goes wrong in bench."""
        self.steps = Steps(self._step_ended, self._restart)
        self._files: RankFiles | None = None
        self._made = self._total = self._restarts = 0
        self._skipped: int | torch.Tensor = 0
        self._marks: list[Any] = []
        self._device: Cpu | Cuda | None = None
        self._watched, self._computed = WatchedModel(), Computed()
        self._products: Products | None = None
        """While it watches a step."""
        self._newest = -1
        self._loaded_samples = 0
        self._reached = set[int]()
        """By id: parameters that had a gradient in warm-up."""
        self._record: dict[str, Any] | None = None
        """What the measured steps were."""
        self.phases: Phases | None = None
        """Once these have ended."""
        self.error_beside: dict[str, Any] | None = None
        """The record of an error in another thread than the first."""
        self._began_s = self._first_s = time.perf_counter()

    @property
    def is_rank(self) -> bool:
        """Whether this process trains, or is one of those that a launcher started to train."""
        return self._files is not None and self._files.is_ours

    def rank_files(self) -> RankFiles:
        rank, _ = ranks()
        if self._files is None or self._files.rank != rank:
            earlier, self._files = self._files, RankFiles(self.settings.folder, rank)
            if earlier is not None and self._total:  # it trained before it was told its rank
                earlier.leave()
                self._train_as(self._files)
        return self._files

    def begin(self) -> None:
        """This process is a rank."""
        self.rank_files().beat("start")
        self._start_pulse(self.rank_files())

    def _start_pulse(self, files: RankFiles) -> None:
        if not files.has_pulse:
            files.has_pulse = True
            beside(files, threading.get_ident())

    def enter(self, optimizer: Any) -> None:
        """An optimizer, or an engine around one, begins its step."""
        self.reach(optimizer)
        if self._products is not None:
            self._products.stepping(1)
        if self.phases is not None:
            self.phases.enter("optim_step")
        self.steps.enter()

    def leave(self, optimizer: Any, *, skipped: bool | torch.Tensor = False) -> None:
        self.reach(optimizer)
        self._left()
        self.steps.leave(optimizer, skipped=skipped)

    def fail(self) -> None:
        """The step raised."""
        self._left()
        self.steps.fail()

    def reach(self, optimizer: Any) -> None:
        """Gradients may come only within a step, from its closure, or be gone after it."""
        if self._made < self._warmup:
            self._reached.update(id(one) for one in parameters_of(optimizer) if one.grad is not None)

    def _left(self) -> None:
        if self._products is not None:
            self._products.stepping(-1)
        if self.phases is not None:
            self.phases.leave("optim_step")

    def loaded(self, batch: Any) -> None:
        """A loader has given the script a batch."""
        self._loaded_samples += samples_in(batch) or 0

    def _restart(self) -> None:
        self._restarts += 1
        self._stop_products()
        self._made = self._skipped = 0
        self._marks = []

    def _step_ended(self, skipped: bool | torch.Tensor) -> None:
        self._made += 1
        self._total += 1
        self._skipped += skipped
        if self.phases is not None:
            self._phase_step(self.phases)
            return
        if self._total == 1:
            self._first_step()
        measured = self._made - self._warmup
        if measured < 0:
            self.rank_files().beat("warmup", self._made, self._warmup)
            self._warm_up()
            return
        assert self._device is not None
        if measured == 0:
            self._stop_products()
            self._device.reset_peaks()
            self._watched.reset()
            self._skipped = self._loaded_samples = 0
            self._first_s = time.perf_counter()
        self._marks.append(self._device.mark())
        files = self._files or self.rank_files()
        files.beat("measure", measured, self.settings.steps)
        if measured == self.settings.steps:
            self._measured(self._device)

    def _first_step(self) -> None:
        self._device = device_of(self.steps.optimizers)
        self._train_as(self.rank_files())

    def _train_as(self, files: RankFiles) -> None:
        if not files.claim():
            files.take()
        with added("VmData"):
            self._start_pulse(files)
        files.trains()

    def _warm_up(self) -> None:
        if self._made == 1:
            self._watched.watch(self.steps.optimizers)
        elif self._made == 2:
            self.rank_files().take()  # also from one that had this rank before it was told its own
            self._watched.choose()
            self._newest = flight.newest_id()
            # Compiled code would run uncompiled meanwhile; backward has modes of its own.
            if not _compiles() and torch._C._current_graph_task_id() == -1:
                self._watching.enter_context(added("RssFile"))  # pages of torch that the script had no need of
                self._products = self._watching.enter_context(Products(self._computed, told=True))
        elif self._made == LEAST_WARMUP:
            self._stop_products()

    def _stop_products(self) -> None:
        if self._products is not None:
            self._watching.close()
            self._products = None
            self._computed.reduced.update(flight.reductions(self._newest))

    def _measured(self, device: Cpu | Cuda) -> None:
        device.synchronize()
        memory = {**device.peaks(), "capacity_bytes": device.capacity_bytes(self.settings.capacity_bytes)}
        files, steps = self.rank_files(), self.settings.phase_steps
        files.beat("phases" if steps else "done", 0, steps)
        self._record = self._of_measured(memory)
        if steps:
            self.phases = Phases(device, self._watched.model, steps)
        else:
            self._finish()

    def _phase_step(self, phases: Phases) -> None:
        phases.step_ended()
        self.rank_files().beat("phases", phases.made, self.settings.phase_steps)
        if phases.complete:
            self._finish()

    def _finish(self) -> None:
        files = self.rank_files()
        files.beat("done")
        self._write(files)
        files.wait_for_others(ranks()[1])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)  # whatever handlers, threads and children the script has: bench ends those

    def _write(self, files: RankFiles) -> None:
        assert self._record is not None
        assert self._device is not None
        if self.phases is not None and self.phases.complete:
            self._device.synchronize()
            self._record |= self.phases.record()
        files.outcome(self._record)

    def _of_measured(self, memory: dict[str, int | None]) -> dict[str, Any]:
        from . import effective  # 5 s and 44 MiB, which must not count in the peaks

        assert self._device is not None
        rank, world_size = ranks()
        regime = self._regime(world_size)
        times_s = [
            max(self._device.between_s(first, last), 1e-9)
            for first, last in zip(self._marks, self._marks[1:], strict=False)
        ]
        kinds = dict.fromkeys(type(effective.innermost(one)).__name__ for one in self.steps.optimizers)
        return {
            "kind": "ok",
            "rank": rank,
            "node": os.environ.get("BENCH_NODE"),
            "regime": regime,
            "memory": memory,
            "step_times_s": times_s,
            "phase_times_s": {},
            "losses": [],
            "warmup_losses": [],
            "metrics": {},
            "setup_s": 0.0,
            "warmup_s": self._first_s - self._began_s,
            "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "units": [],
            "coverage": self._coverage(regime),
            "observed": {
                "samples": self._watched.samples or None,
                "loaded_samples": self._loaded_samples or None,
                "forwards": self._watched.forwards or None,
                "skipped_steps": int(self._skipped),
                "optimizers": len(self.steps.optimizers),
                "trainers": self.rank_files().trainers,
                "optimizer": ", ".join(kinds),
                "compiled": _compiles(),
            },
        }

    def _regime(self, world_size: int) -> dict[str, Any]:
        from . import effective

        root = self._watched.root
        model = effective.wrapper_in(root) if root is not None else effective.stepped_alone(self.steps.optimizers)
        observed = effective.observed(model, self.steps.optimizers, self._computed, others=self._watched.others)
        if world_size == 1:
            observed["reduction_dtype"] = None
        return {
            "world_size": world_size,
            "ranks_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
            "distributed_type": effective.distributed_type(model, isinstance(self._device, Cuda)),
            **observed,
        }

    def _coverage(self, regime: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "parameters": regime["parameters"],
            "trainable_parameters": regime["trained_parameters"],
        }
        if regime["sharding"].startswith("zero"):  # whose optimizers step copies of their own
            return found
        trained = {
            id(one): one for optimizer in self.steps.optimizers for one in parameters_of(optimizer) if one.requires_grad
        }
        left = sorted((one for key, one in trained.items() if key not in self._reached), key=lambda one: -one.numel())
        root = self._watched.root
        names = {id(one): name for name, one in root.named_parameters()} if root is not None else {}
        largest = (names.get(id(one), f"a parameter of {tuple(one.shape)}") for one in left[:MOST_NAMES])
        return found | {
            "without_gradient": sum(one.numel() for one in left),
            "without_gradient_names": tuple(largest),
        }

    def exit(self) -> None:
        """The script ends by itself."""
        if self.is_rank and self.write_measured():
            return
        if self.error_beside is not None and self.is_rank:
            self.rank_files().outcome(self.error_beside)
        elif self._total and self.is_rank:
            self.rank_files().ended_early(self._made, self._warmup, self._restarts)

    def write_measured(self) -> bool:
        """Write what was measured, if the script has ended in the steps after that, which are for the phases."""
        if self._record is None:
            return False
        self._write(self.rank_files())
        return True


def _compiles() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo and dynamo.counters["stats"]["unique_graphs"])
