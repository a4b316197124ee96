"""Generated examples are the same in every run, so that a failure is the change's own."""

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from fake_nvml import driver, nvml_library  # noqa: F401 - fixtures
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# What the user's own `bench calibrate` learnt changes the words of a report.
os.environ["BENCH_STATE"] = os.devnull

# Another ninja, for a test that starts ranks itself, would compile DeepSpeed's extension again.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

# torch caches kernels under keys without the capability of the CPU; those of one do not compile under another.
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{capability}")

# A shell that runs the tests in its background has them, and all that they start, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, lambda *_: None)  # as under nohup; what they start hears it

if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all modules are imported: see pytest_collection_finish

SLOWEST_FIRST = (
    "e2e/test_observed.py",
    "e2e/test_every_backend.py",
    "e2e/test_explain.py",
    "e2e/test_observed_libraries.py",
    "e2e/test_own_workload.py",
    "e2e/test_own_configs.py",
    "e2e/test_training.py",
    "e2e/test_optional_parts.py",
    "e2e/test_audit_on_ranks.py",
    "e2e/test_probe.py",
    "e2e/test_secrets.py",
    "e2e/test_sources.py",
    "e2e/test_launches.py",
    "e2e/test_faults.py",
    "e2e/test_calibrate.py",
    "e2e/test_own_config.py",  # this one and the next read the run of test_every_backend.py, which is then finished
    "e2e/test_communication.py",
    "faults/test_host_signals.py",
    "faults/test_rank_faults.py",
    "faults/test_launch_faults.py",
    "slurm/test_lost_jobs.py",
    "slurm/test_requests.py",
    "slurm/test_faults.py",
    "slurm/test_runs.py",
)
"""When modules run side by side, the many short ones then fill up the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {file: index for index, file in enumerate(SLOWEST_FIRST)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        room = item.path.parent.name
        return order.get(f"{room}/{item.path.name}", len(order)), room != "e2e"

    items.sort(key=place)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # more would spin while they wait, on cores that other tests use


def pytest_collection_finish() -> None:
    """The collector then never looks at the objects of all these modules again, which takes it longest."""
    gc.freeze()
    gc.enable()
