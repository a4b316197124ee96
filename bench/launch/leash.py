"""`python -m bench.launch.leash PARENT COMMAND...` becomes COMMAND, which the kernel ends when process PARENT ends.

A step of its own because `preexec_fn` is not safe in a process with threads. Survives exec: prctl(2). So does the
process number, which tells the ranks below who their launcher is.
"""

import os
import sys

from bench import processes

if __name__ == "__main__":
    processes.die_with_parent(int(sys.argv[1]))
    os.environ[processes.PARENT] = str(os.getpid())
    os.execv(sys.argv[2], sys.argv[2:])
