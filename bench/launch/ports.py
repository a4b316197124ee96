"""A free port, for ranks to meet at."""

import socket


def free_port(*, everywhere: bool = False) -> int:
    """A port that nothing on this machine uses now: at the address that others cannot reach, or ``everywhere``."""
    with socket.socket() as probe:
        probe.bind(("" if everywhere else "127.0.0.1", 0))
        return int(probe.getsockname()[1])
