"""What the source of a training script says of how to start it: its launcher, and the option for its batch. Pure."""

import ast
import json
from collections.abc import Iterator

from bench.errors import InputError
from bench.matrix import yaml_file
from bench.records.script import CALLED_MICRO_BATCHES, MICRO_BATCHES, WORLDS

BATCHES = (
    "per_device_train_batch_size",
    "micro_batch_size",
    "train_micro_batch_size_per_gpu",
    "batch_size_per_gpu",
    "train_batch_size",
    "batch_size",
    "batchsize",
    "batch",
    "bs",
    "b",
)
"""What scripts call the samples of one process and forward; the most exact names first."""
TRAINER = {"TrainingArguments", "SFTConfig", "DPOConfig", "Seq2SeqTrainingArguments"}
"""Classes whose fields `HfArgumentParser` makes options."""


STARTED = (*WORLDS, "world_size", "nprocs", "gpus", "n_gpus", "ngpus", "num_gpus_per_node")
"""What scripts call the number of processes that they start."""
PARSERS = {"tyro", "simple_parsing", "jsonargparse", "draccus", "fire", "HfArgumentParser"}


def matrix_for(source: str, script: str) -> str:
    """A matrix that searches the batch of a script.

    Args:
        script: its name in the command.

    Raises:
        InputError: it is no Python, or has no option for a batch.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"is not Python: {error.msg}", where=f"{script}:{error.lineno}") from error
    options, joined = dict(_options(tree)) or dict(_fields(tree)), False
    if not options and (options := dict(_settings(tree))):
        joined = True
    names = {option.lstrip("-").rpartition(".")[2].replace("-", "_").lower(): option for option in options}
    batch = next((names[name] for name in BATCHES if name in names), None)
    if batch is None:
        raise InputError(
            "has no option for its batch that bench knows",
            where=script,
            allowed=list(BATCHES),
            fix=f"write {{batch}} into the command of a matrix yourself: bench guide scripts; options of the script:"
            f" {', '.join(options) or 'none found'}",
        )
    words = [*_launcher(tree), script, *_said(batch, "{batch}", joined=joined)]
    started = next((names[name] for name in STARTED if name in names), None) if _spawns(tree) else None
    if started:
        words += _said(started, "{num_processes}", joined=joined)
    several = next((names[name] for name in names if name in CALLED_MICRO_BATCHES), None)
    lines = [f"command: [{', '.join(map(_quoted, words))}]", "matrix: {batch: probe}  # or [1, 2, 4]"]
    default = options.get(several) if several else None
    if several and isinstance(default, int):
        more = _said(several, f"{{{MICRO_BATCHES}}}", joined=joined)
        lines[0] = f"command: [{', '.join(map(_quoted, [*words, *more]))}]"
        lines.append(
            f"defaults: {{{MICRO_BATCHES}: {default}}}  # the script's own; --axis global_batch=512 sets the samples of"
            " a step instead"
        )
    if _spawns(tree) and not started:
        lines.append("launch: {num_processes: 2}  # as many as it starts by itself: a run checks it")
    return "\n".join(lines) + "\n"


def _options(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Options of argparse and click, and of transformers' parser, with their defaults as far as they are written."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in ("add_argument", "option"):
            written = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            default = next((word.value for word in call.keywords if word.arg == "default"), None)
            long = sorted((option for option in written if option.startswith("-")), key=len)
            if long:
                yield long[-1], default.value if isinstance(default, ast.Constant) else None
        elif name == "HfArgumentParser":
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            if used & TRAINER:
                yield "--per_device_train_batch_size", None
                yield f"--{MICRO_BATCHES}", 1


def _fields(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Fields of classes, where a loop or a library makes an option of each."""
    dashed = any(
        isinstance(node, ast.Call) and [getattr(one, "value", None) for one in node.args] == ["_", "-"]
        for node in ast.walk(tree)
    )
    looped = any(isinstance(node, ast.Attribute) and node.attr == "add_argument" for node in ast.walk(tree))
    if not looped and PARSERS.isdisjoint(part for name in _imports(tree) for part in name.split(".")):
        return
    for node in (node for one in ast.walk(tree) if isinstance(one, ast.ClassDef) for node in one.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id.replace("_", "-") if dashed else node.target.id
            yield f"--{name}", node.value.value if isinstance(node.value, ast.Constant) else None


def _settings(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Numbers at the top of a script that reads ``--name=value`` for each of them itself, or ``key=value`` for each key
    of a dictionary."""
    if not any(isinstance(node, ast.Attribute) and node.attr == "argv" for node in ast.walk(tree)) and not any(
        isinstance(node, ast.Constant) and str(node.value).endswith("configurator.py") for node in ast.walk(tree)
    ):
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Dict):
                for key, one in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, one.value if isinstance(one, ast.Constant) else None
            if isinstance(value, ast.BinOp):  # such as 5 * 8
                value = value.left
            if isinstance(value, ast.Constant):
                yield (
                    f"--{node.targets[0].id}",
                    node.value.value if isinstance(node.value, ast.Constant) else None,
                )


def _said(option: str, value: str, *, joined: bool) -> list[str]:
    return [f"{option}={value}"] if joined else [option, value]


def _launcher(tree: ast.Module) -> list[str]:
    """What starts its processes, by what it imports."""
    imported = {name.partition(".")[0] for name in _imports(tree)}
    if imported & {"lightning", "pytorch_lightning"}:
        return ["python"]  # it starts the others itself
    if "accelerate" in imported:
        return ["accelerate", "launch", "--multi_gpu", "--num_processes", "{num_processes}"]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if _spawns(tree):
        return ["python"]
    if imported & {"deepspeed", "transformers", "trl"} or names & {"init_process_group", "init_device_mesh"}:
        return ["torchrun", "--standalone", "--nproc_per_node", "{num_processes}"]
    return ["python"]


def _spawns(tree: ast.Module) -> bool:
    """Whether it starts its processes itself."""
    names = {part for name in _imports(tree) for part in name.split(".")}
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return "multiprocessing" in names and bool(calls & {"spawn", "start_processes"})


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _quoted(word: str) -> str:
    try:
        is_plain = yaml_file.parse(f"[{word}]", str, word).data == [word]
    except InputError:
        is_plain = False
    return word if is_plain else json.dumps(word, ensure_ascii=False)
