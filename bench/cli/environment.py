"""Checks the environment variables that change what is measured, before anything is launched."""

import os

from bench.errors import InputError
from bench.matrix import step_batches

THREADS = "OMP_NUM_THREADS"


def check_environment() -> None:
    """Refuse what would measure something else, or fail only after the launch.

    Raises:
        InputError: accelerate would take several batches for a step, or the number of threads is no positive whole
            number.
    """
    step_batches.check_environment(os.environ)
    threads = os.environ.get(THREADS, "1").strip()
    if not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise InputError(
            f"{threads!r} is not a number of threads",
            where="environment",
            field=THREADS,
            allowed="a whole number from 1",
            fix=f"unset {THREADS} for bench's own choice",
        )
