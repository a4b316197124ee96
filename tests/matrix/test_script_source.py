"""The launcher and the batch option of a script, from its source."""

import pytest

from bench.errors import InputError
from bench.matrix.script_source import matrix_for

ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument({}, type=int, default=4)\n"


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (ARGPARSE.format("'-b', '--batch-size'"), '[python, train.py, --batch-size, "{batch}"]'),
        (ARGPARSE.format("'--batch_size'") + "import torch\ntorch.distributed.init_process_group()\n",
         '[torchrun, --standalone, --nproc_per_node, "{num_processes}", train.py, --batch_size, "{batch}"]'),
        ("from accelerate import Accelerator\n" + ARGPARSE.format("'--bs'"),
         '[accelerate, launch, --multi_gpu, --num_processes, "{num_processes}", train.py, --bs, "{batch}"]'),
        ("import lightning as L\n" + ARGPARSE.format("'--batch'"), '[python, train.py, --batch, "{batch}"]'),
        ("from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n",
         '[torchrun, --standalone, --nproc_per_node, "{num_processes}", train.py, --per_device_train_batch_size,'
         ' "{batch}", --gradient_accumulation_steps, "{gradient_accumulation_steps}"]'),
        ("batch_size = 12\ngrad_accum = 5\nexec(open('configurator.py').read())\n",
         '[python, train.py, "--batch_size={batch}", "--grad_accum={gradient_accumulation_steps}"]'),
        ("import sys\ncfg = {'train.batch_size': 16, 'lr': 0.1}\nfor word in sys.argv[1:]: ...\n",
         '[python, train.py, "train.batch_size={batch}"]'),
        ("import argparse\nclass Config:\n    micro_batch_size: int = 8\n    accum: int = 2\n"
         "for name in Config: argparse.ArgumentParser().add_argument('--' + name.replace('_', '-'))\n",
         '[python, train.py, --micro-batch-size, "{batch}", --accum, "{gradient_accumulation_steps}"]'),
        ("import torch.multiprocessing as mp\n" + ARGPARSE.format("'--bs'") + ARGPARSE.format("'--world-size'")
         + "mp.spawn(init_process_group, nprocs=2)\n",
         '[python, train.py, --bs, "{batch}", --world-size, "{num_processes}"]'),
        (ARGPARSE.format("'--val-batch-size'") + ARGPARSE.format("'--batch-size'"),
         '[python, train.py, --batch-size, "{batch}"]'),
    ],
)  # fmt: skip
def test_the_command_of_a_script(source: str, command: str) -> None:
    assert f"command: {command}" in matrix_for(source, "train.py")


def test_the_default_of_accumulation_is_handed_over() -> None:
    written = matrix_for("import sys\nbatch_size = 12\ngrad_accum = 5\nsys.argv\n", "train.py")
    assert "defaults: {gradient_accumulation_steps: 5}  # the script's own; --axis global_batch=512 sets" in written


def test_what_a_script_starts_by_itself_is_left_to_the_user() -> None:
    source = "from torch import multiprocessing\n" + ARGPARSE.format("'--bs'") + "multiprocessing.spawn(train)\n"
    assert "launch: {num_processes: 2}" in matrix_for(source, "train.py")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "train.py:1: is not Python"),
        ("print(1)\n", "has no option for its batch"),
        (ARGPARSE.format("'--size'"), "options of the script: --size"),
    ],
)
def test_what_is_not_found_is_said(source: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        matrix_for(source, "train.py")
    assert words in str(error.value)


def test_a_name_that_yaml_would_read_otherwise_is_quoted() -> None:
    for name in ("it: s.py", "12", "a, b.py", "#x.py"):
        assert f'[python, "{name}", --b' in matrix_for(ARGPARSE.format("'--b'"), name)
