"""Waits until GPUs have back the memory of processes that ended: a driver may take seconds to take one apart."""

import time
from collections.abc import Mapping

from bench.machine import gpus

AT_MOST_S = 30.0
"""Twice as long as a process with full memory has been seen to die."""
SLACK_BYTES = 256 * 2**20
"""What a driver may count differently from one moment to the next."""
EVERY_S = 0.1


class Memory:
    """The memory of the visible GPUs, or of that alone which CUDA shows as ``number``.

    Make it while none of bench's processes uses them. The memory in use is counted, not the processes: a driver does
    not list those of another PID namespace.
    """

    def __init__(self, environment: Mapping[str, str], number: int | None = None) -> None:
        shown = gpus.visible(environment)
        self._uuids = [gpu.uuid for gpu in (shown if number is None else shown[number : number + 1])]
        self._idle = self._used()

    def wait(self) -> int:
        """Wait until no GPU has more in use than at the start.

        Returns:
            Bytes still in use after `AT_MOST_S`, or 0. From then on they are taken for another program's.
        """
        until_s = time.monotonic() + AT_MOST_S
        while left := self._left():
            if time.monotonic() > until_s:
                self._idle = self._used()
                return sum(left.values())
            time.sleep(EVERY_S)
        return 0

    def _left(self) -> dict[str, int]:
        """More bytes than at the start, by GPU. What others have freed meanwhile is not waited for again."""
        used = self._used()
        self._idle |= {uuid: min(now, self._idle.get(uuid, now)) for uuid, now in used.items()}
        more = {uuid: now - self._idle[uuid] for uuid, now in used.items()}
        return {uuid: extra for uuid, extra in more.items() if extra > SLACK_BYTES}

    def _used(self) -> dict[str, int]:
        used = {uuid: gpus.ask(uuid, gpus.used_bytes) for uuid in self._uuids}
        return {uuid: now for uuid, now in used.items() if now is not None}
