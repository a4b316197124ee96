"""Generated examples are the same in every run, so that a failure is the change's own."""

import os
import signal
import sys

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


SLOWEST_FIRST = (
    *(
        "test_documents.py",
        "test_every_backend.py",
        "test_optional_parts.py",
        "test_audit_on_ranks.py",
        "test_probe.py",
    ),
    *("test_secrets.py", "test_sources.py", "test_launches.py", "test_faults.py", "test_calibrate.py"),
    *("test_own_config.py", "test_communication.py"),  # after the run of test_every_backend.py, which they read
    *("test_host_signals.py", "test_rank_faults.py"),
)
"""When modules run side by side, the many short ones then fill up the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: index for index, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: (order.get(item.path.name, len(order)), "e2e" not in item.path.parts))
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # more would spin while they wait, on cores that other tests use
