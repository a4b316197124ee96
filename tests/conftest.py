"""Generated examples are the same in every run, so that a failure is the change's own."""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# What the user's own `bench calibrate` learnt changes the words of a report.
os.environ["BENCH_STATE"] = os.devnull

# A shell that runs the tests in its background has them, and all that they start, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, lambda *_: None)  # as under nohup; what they start hears it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that when modules run side by side the many short ones fill up the end."""
    longest = ("test_host_signals.py", "test_rank_faults.py")
    items.sort(key=lambda item: ("e2e" not in item.path.parts, item.path.name not in longest))
