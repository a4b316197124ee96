"""The table of launchers."""

from collections.abc import Callable, Mapping

from bench.launch.accelerate_launch import OwnLaunch
from bench.launch.executor import Context, Executor
from bench.launch.rank_servers import Forking
from bench.launch.script_launch import ScriptLaunch
from bench.records.outcome import Isolation

LAUNCHERS: Mapping[Isolation, Callable[[Context], Executor]] = {
    "fork": Forking,
    "launch": lambda context: OwnLaunch(context.hardware, context.await_memory),
    "script": ScriptLaunch,
}
"""How `--isolation` runs attempts, and how those of a script run."""
