"""The files that an attempt is launched with, as text: for the attempt's folder, and for `--dry-run` to show."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import backends
from bench.launch.environment import FOREIGN, RENDEZVOUS
from bench.records.base import Device
from bench.records.cell import Attempt, Audit, Walk
from bench.store.spool import Spec

_FINDS = 'import sys; from importlib.util import find_spec as has; sys.exit(not (has("accelerate") and has("bench")))'
"""A program that fails if accelerate or bench is not installed. Importing them would take seconds."""


def launch_command(
    arguments: Sequence[str],
    *,
    python: str = "python",
    config_file: Path | str = "accelerate.yaml",
    log_dir: Path | None = None,
    port: int = 0,
    machine: Sequence[str] = (),
) -> list[str]:
    """The command line that starts the ranks of one machine.

    Args:
        port: at which they meet; 0: accelerate chooses a free one.
        machine: options that say which one of several machines it is.
        log_dir: the folder in which torch makes its folders for the launch; by default, the system's temporary folder.
    """
    accelerate = [python, "-m", "accelerate.commands.launch", "--config_file", str(config_file)]
    logs = [] if log_dir is None else ["--log_dir", str(log_dir)]
    return [*accelerate, "--main_process_port", str(port), *machine, *logs, "-m", "bench.runner", *arguments]


def srun(nodes: int) -> list[str]:
    """Runs a command once on each node. Servers for other numbers of ranks may run there too (--overlap), and the only
    task of a node would be bound to one core."""
    each = ("--kill-on-bad-exit=1", "--overlap", "--export=ALL", "--cpu-bind=none", "--ntasks-per-node=1")
    return ["srun", *each, f"--nodes={nodes}", f"--ntasks={nodes}"]


def files(
    attempt: Attempt | Walk | Audit,
    units: tuple[str, ...] | None,
    device: Device,
    environment: Mapping[str, str],
    folder: str,
    *,
    workload_folder: str | None = None,
    check: bool = False,
) -> dict[str, str]:
    """Name and content of each file that a launch of ``attempt`` reads.

    Args:
        environment: what bench adds to the launch's environment.
        folder: the future folder of the files; the accelerate config names a DeepSpeed config by its path.
        workload_folder: where the workload's module is looked for first.
        check: the ranks also check that they build the same model.
    """
    spec = Spec(attempt=attempt, device=device, units=units, workload_folder=workload_folder, check=check)
    written = {"spec.json": spec.model_dump_json(indent=1) + "\n"}
    script = attempt.cell.script
    if script is not None and not script.uses("accelerate_config"):
        return written
    own = attempt.cell.accelerate if script is not None else None
    if own is not None:  # a script's config stays as it is, but for its ranks
        config: dict[str, Any] = {**own, "num_processes": attempt.cell.num_processes}
    else:
        config = backends.accelerate_config(attempt.cell, units, device)
    if script is not None:
        port = {"main_process_port": 0} if attempt.cell.num_processes > 1 else {}  # accelerate chooses a free one
        return written | _config_files({**config, **port}, folder)
    return written | _config_files(config, folder) | {"command.sh": _script(environment, attempt.cell.num_nodes)}


def _config_files(config: dict[str, Any], folder: str) -> dict[str, str]:
    written = {}
    engine = config.get("deepspeed_config", {}).get("deepspeed_config_file")
    if engine is not None:
        written["deepspeed.json"] = json.dumps(engine, indent=1) + "\n"
        config["deepspeed_config"] = {**config["deepspeed_config"], "deepspeed_config_file": f"{folder}/deepspeed.json"}
    written["accelerate.yaml"] = yaml.safe_dump(config, sort_keys=False)
    return written


def _script(environment: Mapping[str, str], nodes: int) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    attempt, out = ["attempt", '"$here"', "--out", '"$out"'], "$(mktemp -d)"
    launch = [" ".join(launch_command(attempt, config_file='"$here/accelerate.yaml"'))]
    if nodes > 1:
        out = '$(mktemp -d "$here/by_hand.XXXX")'  # all nodes see it
        node = ["python", "-m", "bench.launch.slurm.node", '"$out/accelerate.yaml"', *attempt]
        launch = ['cp "$here/accelerate.yaml" "$out"', " ".join([*srun(nodes), *node])]
    foreign = "|".join([f"({'|'.join(FOREIGN)})[A-Za-z0-9_]*", *RENDEZVOUS])
    lines = [
        "#!/bin/sh",
        "# Runs this attempt by hand, in an accelerate launch of its own. Results go to the folder that you name, or",
        "# to a new one. Start it where bench was started, for the workload to be found, and with the same python.",
        *(
            [f"# It needs {nodes} nodes: start it in a job of Slurm, or with `salloc --nodes={nodes}`."]
            if nodes > 1
            else []
        ),
        "set -eu",
        f"python -c '{_FINDS}' 2>/dev/null || {{",
        '  echo "activate the environment in which bench was started: python here has no bench" >&2',
        "  exit 1",
        "}",
        'here=$(cd "$(dirname "$0")" && pwd)',
        f"out=${{1:-{out}}}",
        "trap 'echo \"results: $out\"' EXIT",
        "# What another launcher, or accelerate's own variables, would change behind the config's back.",
        f"unset $(env | sed -nE 's/^({foreign})=.*/\\1/p') || true",
        *exports,
        *launch,
    ]
    return "\n".join(lines) + "\n"
