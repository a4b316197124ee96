"""`python -m bench.launch.supervisor PARENT FOLDER LIMIT COMMAND...` runs COMMAND; when either ends, so does all below.

The kernel signals this process when process PARENT ends, for any reason. Processes that ranks have started, in any
session, become children of this process when their rank ends, and end with it. Its exit status is that of COMMAND,
which runs in FOLDER. Each process of COMMAND may allocate LIMIT bytes; 0 sets no limit.
"""

import os
import resource
import signal
import sys

from bench import processes


def main(parent: int, folder: str, limit_bytes: int, command: list[str]) -> None:
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    processes.die_with_parent(parent, by=signal.SIGTERM)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # python ignores two, and exec would keep that
            signal.signal(number, signal.SIG_DFL)
        processes.die_with_parent(supervisor)
        os.environ[processes.PARENT] = str(os.getpid())  # exec keeps it, and the death signal too: prctl(2)
        os.chdir(folder)
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        os.execvp(command[0], command)
    ended, status = os.wait()
    while ended != child:  # an orphan
        ended, status = os.wait()
    processes.end_orphans()
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(supervisor, ended_by)
    os._exit(os.waitstatus_to_exitcode(status))


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt this
    while children := processes.tree(os.getpid())[1:]:
        processes.kill(children)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
