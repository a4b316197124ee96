"""The keys that bench knows of accelerate's and DeepSpeed's configs, against those of the installed packages."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from bench.backends import Family
from bench.matrix import accelerate_keys as keys


def source(package: str, file: str) -> str:
    """Read, and not imported, which takes seconds."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text()


def test_the_optimizers_are_those_that_deepspeed_takes() -> None:
    from torch import optim

    text = source("deepspeed", "runtime/config.py")
    named = dict(re.findall(r"^(\w+_OPTIMIZER) = '(\w+)'$", text, re.MULTILINE))
    listed = text.partition("DEEPSPEED_OPTIMIZERS = [")[2].partition("]")[0]
    assert {named[name] for name in re.findall(r"\w+_OPTIMIZER", listed)} == keys.ENGINE_OPTIMIZERS
    classes = {name for name, value in vars(optim).items() if isinstance(value, type)}
    assert classes == keys.TORCH_OPTIMIZERS


def test_the_top_keys_are_those_of_accelerate() -> None:
    text = source("accelerate", "commands/config/config_args.py")
    base = text.partition("class BaseConfig")[2].partition("    def ")[0]
    cluster = text.partition("class ClusterConfig")[2].partition("    def ")[0]
    assert keys.TOP - {"fp16", "dynamo_backend"} == set(re.findall(r"^    (\w+): ", base + cluster, re.MULTILINE))


@pytest.mark.parametrize(
    ("known", "prefix"), [(keys.FSDP, "fsdp_"), (keys.PARALLELISM, "parallelism_config_"), (keys.DEEPSPEED, "")]
)
def test_each_section_has_the_keys_that_the_launcher_hands_on(known: frozenset[str], prefix: str) -> None:
    launcher, options = source("accelerate", "utils/launch.py"), source("accelerate", "commands/launch.py")
    read = set(re.findall(r'args\.(\w+)|args, "(\w+)"', launcher))
    read_names = {name for pair in read for name in pair if name}
    if prefix:
        assert known == {name for name in read_names if name.startswith(prefix)}
    else:
        assert known <= set(re.findall(r'"--(\w+)"', options))


def test_no_key_is_both_read_and_unread_by_a_version_of_fsdp() -> None:
    """Version 1 reads nothing that is said to be ignored, by the source of its plugin."""
    plugin = source("accelerate", "utils/dataclasses.py").partition("class FullyShardedDataParallelPlugin")[2]
    for name in ("limit_all_gathers", "backward_prefetch_policy"):
        assert f'"{name.upper()}"' not in plugin
    for name in ("use_orig_params", "sync_module_states", "forward_prefetch"):
        assert re.search(rf"self\.{name} is None and self\.fsdp_version == 1", plugin)
    assert set(keys.IGNORED_FSDP) <= set(get_args(Family))


def test_the_fields_of_zero_are_those_of_deepspeed() -> None:
    """Its field is named in the code, and again as an alias in the JSON."""
    text = source("deepspeed", "runtime/zero/config.py").partition("class DeepSpeedZeroConfig")[2]
    named = set(re.findall(r"^    (\w+): ", text, re.MULTILINE)) | set(re.findall(r'alias="(\w+)"', text))
    assert named == keys.ZERO


def test_each_section_of_a_deepspeed_config_is_named_in_its_code() -> None:
    spec = find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    text = "\n".join(path.read_text() for path in Path(spec.origin).parent.rglob("*.py"))
    assert [name for name in keys.ENGINE if f'"{name}"' not in text and f"'{name}'" not in text] == []


def test_these_values_of_auto_are_resolved_by_accelerate() -> None:
    texts = source("accelerate", "utils/dataclasses.py") + source("accelerate", "accelerator.py")
    assert [name for name in keys.AUTO if f'"{name}"' not in texts] == []
