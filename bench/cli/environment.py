"""Checks the environment variables that change what is measured, before anything is launched."""

import os

from bench.errors import InputError
from bench.matrix import step_batches

ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
THREADS = "OMP_NUM_THREADS"


def check_environment() -> None:
    """Refuse what would measure something else, or fail only after the launch.

    Raises:
        InputError: gradient accumulation is on, or the number of threads is not a positive whole number.
    """
    if (steps := os.environ.get(ACCUMULATION, "1")) != "1":
        raise step_batches.refused(repr(steps), "environment", ACCUMULATION)
    threads = os.environ.get(THREADS, "1").strip()
    if not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise InputError(
            f"{threads!r} is not a number of threads",
            where="environment",
            field=THREADS,
            allowed="a whole number from 1",
            fix=f"unset {THREADS} for bench's own choice",
        )
