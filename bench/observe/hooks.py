"""Puts the hooks in place once torch is imported, and writes what came of it as the process ends."""

import atexit
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from .files import Settings, writable
from .observer import Observer
from .pulse import frames, script_site

_observers: list[Observer] = []


def arrived(module: str) -> None:
    """The script has imported ``module``."""
    if module == "torch":
        _start()
    else:
        _watch_engine()


def _start() -> None:
    from torch.amp import GradScaler
    from torch.optim import Optimizer
    from torch.utils.data import dataloader

    observer = Observer(Settings.read())
    _observers.append(observer)
    hooked = Optimizer.profile_hook_step  # of each class of optimizers; torch's own hooks miss the end of what raises
    Optimizer.profile_hook_step = staticmethod(lambda step: _watched(hooked(step), observer))  # type: ignore[method-assign,assignment]
    GradScaler.step = _scaled(GradScaler.step, observer)  # type: ignore[method-assign]
    following = dataloader._BaseDataLoaderIter.__next__
    dataloader._BaseDataLoaderIter.__next__ = _loaded(following, observer)  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=observer.forget)
    sys.excepthook = _failing(sys.excepthook, observer)
    threading.excepthook = _failing_beside(threading.excepthook, observer)
    atexit.register(observer.exit)
    if "RANK" in os.environ and observer.rank_files().claim():
        observer.begin()


def _watch_engine() -> None:
    """DeepSpeed's engine may call its optimizer several times in a step, or not at all after an overflow."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    observer, take_step = _observers[0], DeepSpeedEngine._take_model_step

    DeepSpeedEngine._take_model_step = _watched(take_step, observer)


def _watched(step: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """A step of an optimizer, or of an engine around one."""

    @wraps(step)
    def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        skipped = getattr(optimizer, "skipped_steps", None)
        _safely(observer, lambda: observer.enter(optimizer))
        try:
            result = step(optimizer, *args, **kwargs)
        except BaseException:
            _safely(observer, observer.fail)
            raise
        _safely(observer, lambda: observer.leave(optimizer, skipped=_overflowed(optimizer, skipped)))
        return result

    return watched


def _overflowed(optimizer: Any, skipped: int | None) -> Any:
    """Whether its step changed nothing; an engine of DeepSpeed had ``skipped`` so many before.

    torch's scaler tells a fused optimizer alone, on the device.
    """
    return getattr(optimizer, "found_inf", False) if skipped is None else optimizer.skipped_steps > skipped


def _safely(observer: Observer, call: Callable[[], object]) -> None:
    """Nothing that goes wrong in bench may end the script. It is observed no more then."""
    if not observer.observes:
        return
    try:
        call()
    except Exception as error:
        observer.observes = False
        sys.stderr.write("bench cannot observe this process any more:\n")
        traceback.print_exc()
        with suppress(OSError):  # the folder is gone
            observer.rank_files().outcome(_record_of(error, observer))


def _scaled(step: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(step)
    def scaled(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        calls = observer.steps.calls
        result = step(self, optimizer, *args, **kwargs)
        if self.is_enabled() and observer.steps.calls == calls:
            observer.reach(optimizer)
            observer.steps.stepped(optimizer, skipped=True)
        return result

    return scaled


def _loaded(following: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(following)
    def loaded(self: Any) -> Any:
        if observer.phases is not None:
            with observer.phases.within("dataload_wait"):
                return following(self)
        batch = following(self)
        _safely(observer, lambda: observer.loaded(batch))
        return batch

    return loaded


def _failing(hook: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    def failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if observer.is_rank and not observer.write_measured():
            observer.rank_files().outcome(_record_of(error, observer))
        hook(kind, error, trace)

    return failed


def _failing_beside(hook: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """In another thread than the first. It need not be the one that trains, so the script may go on."""

    def failed(given: threading.ExceptHookArgs) -> None:
        if observer.is_rank and given.exc_value is not None:
            observer.error_beside = _record_of(given.exc_value, observer)
        hook(given)

    return failed


def _record_of(error: BaseException, observer: Observer) -> dict[str, Any]:
    """The fields of `bench.records.rank_outcome.RankError`."""
    files = observer.rank_files()
    return {
        "kind": "error",
        "rank": files.rank,
        "phase": files.beat.stage,
        "error": writable(f"{type(error).__name__}: {error}")[:2000],
        "traceback": writable("".join(traceback.format_exception(error)))[-20_000:],
        "at": time.time(),
        "place": script_site(list(frames(traceback.walk_tb(error.__traceback__)))[::-1]),
    }
