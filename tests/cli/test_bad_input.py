"""Every kind of bad input gets one message: where, which field, what it was, what is allowed. Nothing is launched."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from toy_workloads import Toy
from typer.testing import CliRunner

from bench import workloads
from bench.cli.app import app
from bench.errors import InputError
from bench.matrix import expand, load
from bench.matrix.select import narrow
from bench.records.machine import Hardware

CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=16 * 2**30)
GPUS = Hardware(device="cuda", devices=2, cores=16, memory_bytes=80 * 2**30)
HEAD = "workload: {name: 'tests.toy_workloads:Toy', preset: tiny}\n"
GOOD = HEAD + "matrix:\n  backend: [ddp, fsdp]\n  num_cams: [1, 4]\n  batch: [1, 2]\n"
DDP = "distributed_type: MULTI_GPU\n"
JSON = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
OWN = HEAD + "matrix: {backend: {name: mine, config_file: own.yaml}, batch: 1}\n"


@dataclass(frozen=True)
class Case:
    """One kind of bad input and what its message must hold."""

    text: str | bytes | None
    expected: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    beside: dict[str, str] = field(default_factory=dict)
    hardware: Hardware = CPU


def own(config: str, *expected: str, **beside: str) -> Case:
    files = {"own.yaml": config, **{f"{stem}.json": text for stem, text in beside.items()}}
    return Case(OWN, expected, beside=files)


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(9))
LONG = "x" * 100_000
MANY = "matrix: {backend: ddp, batch: 1, num_cams: RANGE, width: RANGE, scale: RANGE}".replace(
    "RANGE", f"{[*range(1, 40)]}"
)
DEEP = "matrix: " + "[" * 2000 + "]" * 2000

CASES = [
    # the file
    Case(None, ("bad.yaml: no such file", "did you mean 'bed.yaml'?"), beside={"bed.yaml": GOOD}),
    Case("", ("bad.yaml: is empty", "allowed: a mapping")),
    Case("# nothing\n", ("bad.yaml: is empty",)),
    Case("- 1\n", ("bad.yaml: holds [1]", "allowed: a mapping")),
    Case(GOOD.encode() + b"# caf\xe9\n", (f"0xe9 at offset {len(GOOD) + 5}", "UTF-8")),
    Case(GOOD.encode("utf-16"), ("is not UTF-8", "offset 0")),
    Case("#" * 300_000, ("larger than 256 KiB",)),
    Case(GOOD + "name: ../x\n", ("bad.yaml:6: name: '../x'", "letters, digits")),
    # YAML
    Case(GOOD + "exclude: [\n", ("bad.yaml:7", "is not YAML")),
    Case(GOOD + "exclude: [{batch: 1}\nname: x\n", ("bad.yaml:7", "close each [ and {")),
    Case(GOOD + "train:\n   compile: true\n  steps: 1\n", ("indent all keys of one mapping",)),
    Case(GOOD + "exclude: []]\n", ("bad.yaml:6", "closes nothing: remove it")),
    Case(GOOD + "workload_folder: 'a' b\n", ("bad.yaml:6", "one pair of quotation marks")),
    Case(GOOD + "train:\n\tcompile: true\n", ("bad.yaml:7", "spaces, not tabs")),
    Case(GOOD + "matrix: {}\n", ("bad.yaml:6: matrix", "twice, first at", "bad.yaml:2")),
    Case(GOOD + "---\na: 1\n", ("bad.yaml:6", "is not YAML")),
    Case(GOOD + "exclude: *x\n", ("bad.yaml:6", "undefined alias")),
    Case(GOOD + "exclude: &x [*x]\n", ("bad.yaml:6: exclude[0]", "contains itself")),
    Case(BOMB, ("more than 10,000 values",)),
    Case(DEEP, ("nested",)),
    Case(GOOD + "exclude: !!python/object/apply:os.system [ls]\n", ("bad.yaml:6: exclude", "python/object")),
    Case(GOOD + "train: {learning_rate: 2020-01-01}\n", ("bad.yaml:6: train.learning_rate", "is a date")),
    Case(GOOD + "1: 2\n", ("bad.yaml:6", "the key 1 is not text")),
    Case(GOOD + "? [1]\n: 2\n", ("bad.yaml:6", "a list or mapping is not text")),
    Case(GOOD + "train: {<<: {compile: true}}\n", ("bad.yaml:6", "merge keys")),
    Case(GOOD + "train: {learning_rate: .nan}\n", ("bad.yaml:6: train.learning_rate", "finite")),
    Case(GOOD + "launch: {attempt_timeout_s: 1e999}\n", ("bad.yaml:6", "finite numbers")),
    Case(GOOD + f"measure: {{steps: {10**30}}}\n", ("bad.yaml:6: measure.steps", "below 2**63")),
    Case(GOOD + 'name: "\\ud800"\n', ("bad.yaml:6",)),
    # fields and types
    Case(GOOD + "lauch: {}\n", ("bad.yaml:6: lauch: unknown field", "did you mean 'launch'?")),
    Case(GOOD + "measure: {step: 3}\n", ("bad.yaml:6: measure.step", "did you mean 'steps'?")),
    Case(GOOD + "warmup_steps: 3\n", ("bad.yaml:6", "did you mean 'measure.warmup_steps'?")),
    Case(GOOD + "measure: {steps: '3'}\n", ("measure.steps: '3' cannot", "a whole number", "the quotes: 3")),
    Case(GOOD + "measure: {steps: true}\n", ("measure.steps: true cannot", "a whole number")),
    Case(GOOD + "measure: {steps: 2.5}\n", ("measure.steps: 2.5 cannot", "a whole number")),
    Case(GOOD + "measure: {steps: }\n", ("bad.yaml:6: measure.steps: null", "a whole number")),
    Case(GOOD + "train: {compile: 1}\n", ("train.compile: 1 cannot", "'none', 'unit' or 'model'")),
    Case(GOOD + "launch: fast\n", ("bad.yaml:6: launch: 'fast'", "a mapping")),
    Case(GOOD + "exclude:\n", ("bad.yaml:6: exclude: null", "a list")),
    Case(GOOD + "measure: {steps: 0}\n", ("measure.steps: 0 cannot", "at least 1")),
    Case(
        GOOD + "train: {fused: true, foreach: true}\n",
        ("bad.yaml:6: train: {", "fused and foreach are two implementations of AdamW: choose one"),
    ),
    Case(GOOD + "train: {optimizer: adam}\n", ("train.optimizer: 'adam'", "choose adamw, muon, none")),
    Case(GOOD + "launch: {mixed_precision: fp8}\n", ("'fp8'", "'bf16', 'fp16' or 'no'")),
    Case(GOOD + "launch: {memory_limit: big}\n", ("memory_limit: 'big'", "a size such as 8GiB or 'auto'")),
    Case(GOOD + "launch: {memory_limit: 90%}\n", ("'90%' cannot be used", "a size such as 8GiB")),
    Case(GOOD + "train: {max_grad_norm: 0}\n", ("train.max_grad_norm: 0 cannot be used", "null clips nothing")),
    Case(GOOD + "launch: {memory_limit: 8GiB each}\n", ("'8GiB each' cannot be used",)),
    Case(GOOD + "launch: {memory_limit: 8}\n", ("8 B is less than any model needs: try 8GiB", "memory_limit: 8")),
    Case(GOOD + "launch: {memory_limit: 8kB}\n", ("bad.yaml:6: launch.memory_limit", "7.81 KiB is less than")),
    Case(GOOD + "measure: {steps: 0, seed: -1, x: 1}\n", ("measure.steps", "2 more problems")),
    Case(GOOD + "probe: {tolerance: abc}\n", ("probe.tolerance: 'abc'", "a number or a percentage such as 3%")),
    Case(GOOD + "probe: {headroom: true}\n", ("probe.headroom: true", "a percentage such as 3%")),
    # axes
    Case(
        HEAD + "matrix:\n  backend: [ddp, fspd]\n  batch: 1\n",
        ("bad.yaml:3: matrix.backend[1]: 'fspd'", "zero3", "did you mean 'fsdp'?"),
    ),
    Case(HEAD + "matrix: {backend: [DDP], batch: 1}\n", ("'DDP'", "did you mean 'ddp'?")),
    Case(
        HEAD + "matrix:\n  backend: ddp, fsdp2\n  batch: 1\n",
        ("bad.yaml:3: matrix.backend[0]: 'ddp, fsdp2'", "write a list: [ddp, fsdp2]"),
    ),
    Case(
        HEAD + "matrix:\n  backend: ddp\n  batchsize: 1\n",
        ("bad.yaml:4: matrix.batchsize: unknown field", "did you mean 'batch'?"),
    ),
    Case(
        GOOD + "include:\n  - {backend: zero4}\n", ("bad.yaml:7: include[0].backend: 'zero4'", "did you mean 'zero3'?")
    ),
    Case(HEAD + "matrix: {backend: [[ddp]], batch: 1}\n", ('matrix.backend[0]: ["ddp"]', "zero3")),
    Case(GOOD.replace("[1, 2]", "[1, '2']"), ("bad.yaml:5: matrix.batch[1]: '2'", "remove the quotes: 2")),
    Case(GOOD.replace("[1, 4]", "['4']"), ("bad.yaml:4: matrix.num_cams[0]", "quotes: 4")),
    Case(GOOD + "  grad_ckpt: ['true']\n", ("bad.yaml:6: matrix.grad_ckpt[0]: 'true'", "remove the quotes: true")),
    Case(GOOD + "measure: {steps: three}\n", ("bad.yaml:6: measure.steps: 'three'",)),
    Case(GOOD + "  num_cam: [1]\n", ("bad.yaml:6: matrix.num_cam", "did you mean 'num_cams'?")),
    Case(GOOD.replace("[1, 4]", "[1, four]"), ("bad.yaml:4: matrix.num_cams[1]: 'four'", "a whole number")),
    Case(GOOD.replace("[1, 4]", "[1, 9]"), ("bad.yaml:4: matrix.num_cams[1]: 9", "at most 8")),
    Case(GOOD + "  attention: [sdpaa]\n", ("bad.yaml:6: matrix.attention", "'eager' or 'sdpa'")),
    Case(GOOD.replace("[1, 4]", "[[1, 4]]"), ("bad.yaml:4: matrix.num_cams[0]: [1, 4]", "a whole number")),
    Case(GOOD + "  width: [2]\n", ("bad.yaml:4: matrix.num_cams[1]", "width=2 is less than num_cams=4")),
    Case(GOOD + "  attention: []\n", ("bad.yaml:6: matrix.attention: []", "at least 1")),
    Case(GOOD.replace("[1, 4]", "[1, 4, 1]"), ("bad.yaml:4: matrix.num_cams[2]: 1 is listed twice",)),
    Case(HEAD, ("bad.yaml", "nothing to measure")),
    Case(HEAD + "matrix: {batch: 1}\n", ("bad.yaml:2: matrix.backend: no backend", "zero3")),
    Case(
        GOOD + "defaults: {attention: sdpa}\ninclude:\n  - {batch: 8}\n",
        ("bad.yaml:8: include[0].backend: no backend", "matches no combination", "in defaults", "under matrix.batch"),
    ),
    Case(HEAD + "include:\n  - {batch: 1}\n", ("bad.yaml:3: include[0].backend: no backend",)),
    Case(HEAD + "matrix: {backend: ddp}\n", ("bad.yaml:2: matrix.batch: no batch",)),
    Case(
        GOOD.replace("[1, 2]", "[1, 0]"),
        ("bad.yaml:5: matrix.batch[1]: 0", "batches per rank, such as [1, 2, 4], or probe"),
    ),
    Case(GOOD.replace("[1, 2]", "true"), ("bad.yaml:5: matrix.batch", "true cannot")),
    Case(GOOD + "include:\n  - {backend: zero2, batch: big}\n", ("bad.yaml:7: include[0].batch: 'big'",)),
    Case(GOOD.replace("[1, 2]", "prob"), ("bad.yaml:5: matrix.batch[0]: 'prob'", "or probe")),
    Case(
        GOOD + "probe: {max_batch: 4, granularity: 8}\n",
        ("bad.yaml:6: probe", "granularity 8 is above the largest batch allowed, 4"),
    ),
    Case(GOOD + "probe: {max_batch: 0}\n", ("bad.yaml:6: probe.max_batch: 0", "at least 1")),
    Case(GOOD + "probe: {headroom: 1.5}\n", ("bad.yaml:6: probe.headroom: 1.5", "up to 1")),
    Case(HEAD + MANY, ("bad.yaml:2: matrix: 59,319 combinations", "up to 10,000")),
    Case(
        GOOD + f"include: {[{'width': 99 + index} for index in range(1001)]}\n",
        ("bad.yaml:6: include: 1,001 entries are too many", "up to 1,000"),
    ),
    # include, exclude, defaults
    Case(
        GOOD + "exclude:\n  - {num_cams: 1}\n  - {num_cams: 3}\n",
        ("bad.yaml:8: exclude[1]", "num_cams is never 3", "allowed: 1, 4"),
    ),
    Case(GOOD + "exclude:\n  - {attention: sdpa}\n", ("bad.yaml:7: exclude[0].attention", "num_cams")),
    Case(GOOD + "exclude: [{}]\n", ("bad.yaml:6: exclude[0]", "everything")),
    Case(
        GOOD + "exclude: [{backend: ddp}, {backend: fsdp}]\n", ("bad.yaml:6: exclude: every combination is excluded",)
    ),
    Case(GOOD + "include:\n  - {attenton: sdpa}\n", ("bad.yaml:7: include[0].attenton", "did you mean 'attention'?")),
    Case(GOOD + "include: [{attention: fast}]\n", ("bad.yaml:6: include[0].attention: 'fast'",)),
    Case(GOOD + "defaults: {grad_ckpt: maybe}\n", ("bad.yaml:6: defaults.grad_ckpt: 'maybe'",)),
    Case(GOOD + "  compile: [no]\n", ("bad.yaml:6: matrix.compile[0]: 'no'", "'none', 'unit' or 'model'")),
    # the workload
    Case("workload: {name: pi08}\n", ("bad.yaml:1: workload.name: 'pi08'", "did you mean 'pi07'?")),
    Case("workload: {name: 'nowhere.x:Y'}\n", ("bad.yaml:1: workload.name: cannot load 'nowhere.x:Y'",)),
    Case(
        "workload: {name: 'toy_workloads:Toi'}\n",
        ("bad.yaml:1: workload.name: cannot load", "toy_workloads defines no 'Toi'", "did you mean 'Toy'?"),
    ),
    Case("workload: {name: '..:Y'}\n", ("bad.yaml:1: workload.name: '..:Y'", "package.module:name")),
    Case(GOOD.replace("tiny", "tinny"), ("bad.yaml:1: workload.preset: 'tinny'", "did you mean 'tiny'?")),
    Case(GOOD.replace("tiny", "tiny, num_cam: 2"), ("bad.yaml:1: workload.num_cam", "did you mean 'num_cams'?")),
    Case(GOOD.replace("tiny", "tiny, width: wide"), ("bad.yaml:1: workload.width: 'wide'",)),
    Case(
        GOOD.replace(":Toy", ":Unbounded"),
        ("bad.yaml:1: workload.clip: inf is not a JSON value", "finite value, or null"),
    ),
    Case(
        "workload: {name: 'tests.toy_workloads:of_bytes'}\nmatrix: {backend: ddp, batch: 1}\n",
        ("bad.yaml:1: workload: ", "stored as JSON"),
    ),
    Case(GOOD.replace(":Toy", ":Opaque"), ("bad.yaml:1: workload: ", "stored as JSON")),
    # the machine
    Case(
        GOOD + "launch: {num_processes: 4}\n",
        ("bad.yaml:6: launch.num_processes: 4 processes", "1 to 2"),
        hardware=GPUS,
    ),
    # gradient accumulation, through each way in
    Case(GOOD + "gradient_accumulation_steps: 2\n", ("bad.yaml:6", "accumulation is refused")),
    Case(
        GOOD + "train: {gradient_accumulation_steps: 2}\n",
        ("bad.yaml:6: train.gradient_accumulation_steps: 2", "set train.accumulate"),
    ),
    Case(GOOD + "launch: {gradient_accumulation_steps: 1}\n", ("bad.yaml:6", "set train.accumulate")),
    Case(GOOD + "  gradient_accumulation_steps: [1, 2]\n", ("bad.yaml:6", "is refused")),
    Case(GOOD, ("train.gradient_accumulation_steps", "is refused"), overrides=("train.gradient_accumulation_steps=4",)),
    own(
        "distributed_type: FSDP\ngradient_accumulation_steps: 4\n",
        "own.yaml:2: gradient_accumulation_steps: unknown field",
        "accelerate rejects it",
    ),
    own(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: auto\n",
        "own.yaml:3: deepspeed_config.gradient_accumulation_steps: 'auto' fails in accelerate",
        "a whole number, at least 1",
    ),
    own(
        JSON,
        "ds.json:2: gradient_accumulation_steps: 0 fails in",
        "a whole number, at least 1 or auto",
        ds='{"zero_optimization": {},\n"gradient_accumulation_steps": 0}',
    ),
    Case(
        GOOD + "train: {global_batch: 8, accumulate: 2}\n",
        ("bad.yaml:6: train.global_batch: 8 cannot be used with train.accumulate", "leave one of the two out"),
    ),
    # accelerate configs; tests/e2e/own_configs.py has more that are refused
    Case(OWN, ("bad.yaml:2", "own.yaml' does not exist")),
    own("distributed_type: TPU\n", "own.yaml:1: distributed_type: 'TPU'", "FSDP"),
    own("compute_environment: AMAZON_SAGEMAKER\n", "own.yaml:1: compute_environment", "LOCAL_MACHINE"),
    own("- 1\n", "own.yaml: [1] cannot be used", "a mapping"),
    own("distributed_type: FSDP\nfsdp_config: x\n", "own.yaml:2: fsdp_config: 'x'", "a mapping"),
    own(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: no.json\n",
        "own.yaml:3",
        "does not exist",
    ),
    own(JSON, "ds.json:2", "is not JSON", ds="{\n]"),
    own(
        JSON,
        "ds.json:1: torch_autocast.enabled: true",
        "launch.mixed_precision: bf16",
        ds='{"zero_optimization": {}, "torch_autocast": {"enabled": true}}',
    ),
    own(
        "distributed_type: MULTI_GPU\ngpu_ids: '0,1'\n",
        "own.yaml:2: gpu_ids: '0,1': selecting GPUs here is refused",
        "allowed: all",
        "CUDA_VISIBLE_DEVICES",
    ),
    own(DDP + "gpu_ids: 0\n", "own.yaml:2: gpu_ids: 0", "CUDA_VISIBLE_DEVICES"),
    own(DDP + "dynamo_backend: EAGER\n", "own.yaml:2: dynamo_backend", "train.compile"),
    own("mixed_precision: bf16\n", "own.yaml: distributed_type: is required", "MULTI_GPU"),
    own(DDP + "num_proceses: 2\n", "own.yaml:2: num_proceses: unknown", "did you mean 'num_processes'?"),
    own(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_ofload_params: true\n",
        "own.yaml:3: fsdp_config.fsdp_ofload_params: unknown field",
        "ignore it without a word",
        "did you mean 'fsdp_offload_params'?",
    ),
    own(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: FULL_SHARD\n",
        "own.yaml:4: fsdp_config.fsdp_reshard_after_forward: 'FULL_SHARD' fails with fsdp_version 2",
        "true or false",
    ),
    own(
        "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_WRAP}\n",
        "own.yaml:2: fsdp_config.fsdp_auto_wrap_policy: 'TRANSFORMER_WRAP'",
        "did you mean 'TRANSFORMER_BASED_WRAP'?",
    ),
    own(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stages: 3}\n",
        "own.yaml:2: deepspeed_config.zero_stages: unknown field",
        "did you mean 'zero_stage'?",
    ),
    own(
        "distributed_type: FSDP\nparallelism_config: {dp_shard_size: 2}\n",
        "own.yaml:2: parallelism_config.dp_shard_size: unknown field",
        "did you mean 'parallelism_config_dp_shard_size'?",
    ),
    own(
        JSON,
        "ds.json:2: gradient_cliping: unknown field",
        "did you mean 'gradient_clipping'?",
        ds='{"zero_optimization": {},\n"gradient_cliping": 1.0}',
    ),
    own(JSON, "ds.json: zero_optimization: accelerate requires", ds="{}"),
    own(
        JSON,
        "ds.json:2: optimizer.type: DeepSpeed needs its type",
        "or leave optimizer out",
        ds='{"zero_optimization": {},\n"optimizer": {"params": {}}}',
    ),
    own(
        JSON,
        "ds.json:2: optimizer.params.lr: 'abc' is not supported",
        "a number, at least 0, or auto",
        ds='{"zero_optimization": {}, "optimizer": {"type": "AdamW",\n"params": {"lr": "abc"}}}',
    ),
    own(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: x\n", "own.yaml:3: fsdp_config.fsdp_version: 'x'", "1, 2"
    ),
    own(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 9\n",
        "own.yaml:3: fsdp_config.fsdp_sharding_strategy: 9",
        "FULL_SHARD",
    ),
    Case(
        HEAD + "matrix: {backend: {name: ddp, config_file: own.yaml}, batch: 1}\n",
        ("bad.yaml:2: matrix.backend[0].name: 'ddp'", "not the name of a built-in"),
        beside={"own.yaml": "{}"},
    ),
    Case(OWN.replace("own.yaml", "own.yaml, rank: 1"), ("backend[0].rank", "unknown")),
    # the command line
    Case(GOOD, ("measure.steps", "name=value"), overrides=("measure.steps",)),
    Case(GOOD, ("steps=5: steps: unknown", "did you mean 'measure.steps'?"), overrides=("steps=5",)),
    Case(GOOD, ("did you mean 'workload.num_cams'?",), overrides=("num_cams=2",)),
    Case(
        GOOD,
        ("workload.num_cams=2: has no effect: num_cams is set in matrix", "--axis num_cams=2"),
        overrides=("workload.num_cams=2",),
    ),
    Case(
        GOOD,
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in matrix", "--axis grad_ckpt=true"),
        overrides=("workload.grad_ckpt=true",),
        axes=("grad_ckpt=false",),
    ),
    Case(
        GOOD + "defaults: {grad_ckpt: false}\n",
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in defaults", "set defaults.grad_ckpt=true"),
        overrides=("workload.grad_ckpt=true",),
    ),
    Case(
        GOOD + "include: [{num_cams: 1, grad_ckpt: true}, {num_cams: 4, grad_ckpt: false}]\n",
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in include", "change it in the file"),
        overrides=("workload.grad_ckpt=true",),
    ),
    Case(
        GOOD + "defaults: {grad_ckpt: false}\n",
        ("workload={grad_ckpt: true}: has no effect: grad_ckpt is set in defaults", "set defaults.grad_ckpt=…"),
        overrides=("workload={grad_ckpt: true}",),
    ),
    Case(
        GOOD,
        ("launch.mixed_precision=no: has no effect", "--axis mixed_precision=no"),
        overrides=("launch.mixed_precision=no",),
        axes=("mixed_precision=bf16",),
    ),
    Case(GOOD, ("measure.steps=few: measure.steps: 'few'", "a whole number"), overrides=("measure.steps=few",)),
    Case(GOOD, ("measure.steps is 5", "no fields"), overrides=("measure.steps=5", "measure.steps.x=1")),
    Case(GOOD, ("name=[: is not YAML",), overrides=("name=[",)),
    Case(GOOD, ("--axis num_cam=1: matrix.num_cam", "did you mean 'num_cams'?"), axes=("num_cam=1",)),
    Case(GOOD, ("--axis num_cams=: matrix.num_cams", "at least 1"), axes=("num_cams=",)),
    Case(GOOD, ("--axis num_cams=1,x: matrix.num_cams[1]: 'x'",), axes=("num_cams=1,x",)),
    Case(GOOD, ("--select backed=ddp: unknown", "did you mean 'backend'?"), select=("backed=ddp",)),
    Case(GOOD, ("backend is never 'zero2'", "allowed: 'ddp', 'fsdp'"), select=("backend=ddp,zero2",)),
    Case(GOOD, ("--select backend",), select=("backend",)),
    Case(
        GOOD,
        ("is more than one condition", "repeat the option: --select backend=ddp --select num_cams=1"),
        select=("backend=ddp num_cams=1",),
    ),
    Case(GOOD, ("--exclude", "num_cams is never 3", "1, 4"), exclude=("backend=ddp num_cams=3",)),
    Case(GOOD, ("--exclude", "everything is excluded"), exclude=("backend=ddp,fsdp",)),
    Case(GOOD, ("--exclude",), exclude=("",)),
    # whatever is long is shortened, and what a terminal would obey is written out
    Case(GOOD + f"{LONG[:1000]}: 1\n", ("bad.yaml:6", "unknown field 'xxx", "allowed: name, workload")),
    Case(f"workload: {{name: {LONG}}}\n", ("bad.yaml:1: workload.name", "is not a workload")),
    Case(GOOD, ("=5: xxx", "unknown field"), overrides=(f"{LONG}=5",)),
    Case(GOOD, ("--axis num_cams=xxx", "matrix.num_cams[0]"), axes=(f"num_cams={LONG}",)),
    Case(GOOD, ("--select xxx", "unknown field"), select=(f"{LONG}=1",)),
    Case(GOOD, ("--exclude", "num_cams is never"), exclude=(f"num_cams={LONG}",)),
    Case(
        HEAD + f"matrix: {{backend: ddp, batch: {[*range(1, 5000)]}}}\n",
        ("batch is never 9999", "4999"),
        select=("batch=9999",),
    ),
    Case(GOOD + '"\\e[31m": 1\n', ("bad.yaml:6: \\x1b[31m: unknown field",)),
    Case(GOOD + '"a\\nb": 1\n', ("bad.yaml:6: a b: unknown field 'a\\nb'",)),
]


def place(case: Case, folder: Path) -> Path:
    """The case's files on disk; returns its matrix."""
    for name, text in case.beside.items():
        (folder / name).write_text(text)
    path = folder / "bad.yaml"
    if case.text is not None:
        path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    return path


def load_and_expand(path: Path, case: Case) -> None:
    matrix = load(path, overrides=case.overrides, axes=case.axes, hardware=case.hardware)
    narrow(expand(matrix, case.hardware), select=case.select, exclude=case.exclude)


def test_the_good_matrix_is_good(tmp_path: Path) -> None:
    case = Case(GOOD, ())
    load_and_expand(place(case, tmp_path), case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.expected[0][:60])
def test_bad_input_is_one_message(case: Case, tmp_path: Path) -> None:
    path = place(case, tmp_path)
    with pytest.raises(InputError) as caught:
        load_and_expand(path, case)
    message = str(caught.value)
    for fragment in case.expected:
        assert fragment in message
    assert len(message.splitlines()) <= 3
    assert len(message) <= 20 * 120
    assert message.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.hardware is CPU], ids=lambda case: case.expected[0][:60]
)
def test_bad_input_ends_the_command_with_2(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = pytest.importorskip("bench.cli")
    out = tmp_path / "out"
    options = [("--axis", case.axes), ("--select", case.select), ("--exclude", case.exclude)]
    arguments = [part for option, values in options for value in values for part in (option, value)]
    path = str(place(case, tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench", "run", path, *case.overrides, *arguments, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert "Traceback" not in printed
    assert not out.exists()


def test_settings_that_are_large_in_all_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.matrix.expansion.MAX_CHARACTERS", 1000)
    case = Case(GOOD.replace("tiny", "tiny, layers: [1, 2, 3]"), ())
    with pytest.raises(InputError, match=r"bad.yaml:2: the settings of all cells together have more than"):
        load_and_expand(place(case, tmp_path), case)


def test_a_folder_is_not_a_matrix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path, hardware=CPU)


def test_a_workload_that_takes_no_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["from pydantic import BaseModel", "class Bare:", "    class Config(BaseModel): pass", "    presets = {}"]
    parts = [f"    def {name}(self, *_): pass" for name in ("auto_preset", "build", "dataset")]
    (tmp_path / "bare.py").write_text("\n".join([*lines, "    units = ()", *parts]))
    monkeypatch.chdir(tmp_path)
    case = Case(GOOD.replace("tests.toy_workloads:Toy', preset: tiny", "bare:Bare'"), ())
    with pytest.raises(InputError, match="it cannot be created from its config: too many positional") as said:
        load_and_expand(place(case, tmp_path), case)
    assert said.value.fix == "give it an __init__(self, config)"


@pytest.mark.parametrize("config", ["BaseModel", "dict", "'Config'"])
def test_a_workload_without_a_config_of_its_own_is_refused(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from pydantic import BaseModel", "class Plain:", f"    Config = {config}", "    presets, units = {}, ()"]
    parts = [f"    def {name}(self, *_): pass" for name in ("__init__", "auto_preset", "build", "dataset")]
    module = f"plain_{config.strip(chr(39)).lower()}"
    (tmp_path / f"{module}.py").write_text("\n".join([*lines, *parts]))
    monkeypatch.chdir(tmp_path)
    case = Case(GOOD.replace("tests.toy_workloads:Toy', preset: tiny", f"{module}:Plain'"), ())
    with pytest.raises(InputError, match="its Config is neither a pydantic model of its own nor a dataclass") as said:
        load_and_expand(place(case, tmp_path), case)
    assert "class Config(pydantic.BaseModel)" in (said.value.fix or "")


@pytest.mark.parametrize("presets", ["[]", "None", "{'tiny': 1}", "{1: {}}", "'tiny'"])
def test_presets_that_are_no_mapping_of_fields_are_one_message(
    presets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from pydantic import BaseModel", "class Wrong:", "    class Config(BaseModel): pass", "    units = ()"]
    parts = [f"    def {name}(self, *_): pass" for name in ("__init__", "auto_preset", "build", "dataset")]
    module = f"presets_{sum(map(ord, presets))}"
    (tmp_path / f"{module}.py").write_text("\n".join([*lines, f"    presets = {presets}", *parts]))
    (tmp_path / "bad.yaml").write_text(f"workload: {{name: {module}:Wrong}}\nmatrix: {{backend: ddp, batch: 1}}\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "bad.yaml", "--dry-run"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"bench: bad.yaml:1: workload.name: '{module}:Wrong' is not a workload: its presets are not a mapping"
        " from names to fields of its Config\n  `presets = {}` for none\n"
    )


def test_a_python_file_in_place_of_a_matrix_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text("import torch\nx = [\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "my_model.py", "--dry-run"])
    assert done.exit_code == 2
    assert done.stderr == "bench: my_model.py: is a Python file\n  give the matrix file, whose workload names it\n"


def test_a_workload_whose_constructor_shows_no_signature_is_taken_at_its_word() -> None:
    """A class that takes its constructor from one of C's: Python cannot say what it takes."""

    class Opaque(dict[str, Any]):
        Config, presets, units = Toy.Config, Toy.presets, Toy.units
        auto_preset = build = dataset = lambda *_: None

    module = ModuleType("opaque_workload")
    vars(module)["Opaque"] = Opaque
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "opaque_workload", module)
        assert workloads.load("opaque_workload:Opaque").create is Opaque


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probe", "--backend", "nope"], "bench: --backend nope: 'nope' is not a backend\n  allowed: single, ddp"),
        (
            ["audit", "params", "--backend", "fspd"],
            "bench: --backend fspd: 'fspd' is not a backend\n  did you mean 'fsdp'?",
        ),
        (["probe", "--backend", "ddp", "--axis", "num_cams=x"], "bench: --axis num_cams=x: matrix.num_cams[0]: 'x'"),
    ],
)
def test_a_message_names_the_option_that_was_given(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--steps", "write measure.steps=VALUE"),
        ("--measure.steps", "write measure.steps=VALUE"),
        ("--num-processes", "write launch.num_processes=VALUE"),
        ("--batch", "write --axis batch=VALUES"),
    ],
)
def test_an_option_that_is_a_field_says_how_to_set_the_field(option: str, fix: str) -> None:
    done = CliRunner().invoke(app, ["run", "quickstart", option, "10"])
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(fix)


@pytest.mark.parametrize("threads", ["abc", "0", "-1", "1.5", ""])
@pytest.mark.parametrize(
    "arguments", [["run", "bad.yaml"], ["probe", "--backend", "ddp"], ["audit", "params", "--backend", "ddp"]]
)
def test_a_number_of_threads_that_is_none_is_refused_before_a_launch(
    arguments: list[str], threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    place(Case(GOOD, ()), tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--out", "out"])
    assert done.exit_code == 2
    assert done.stderr == (
        f"bench: environment: OMP_NUM_THREADS: {threads!r} is not a number of threads\n"
        "  allowed: a whole number from 1\n  unset OMP_NUM_THREADS for bench's own choice\n"
    )
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probe.max_batch=8"], "probe.max_batch=8: has no effect: no cell searches its batch\n  use `bench probe`"),
        (["measure.launches=3", "--best"], "measure.launches=3: has no effect: --best launches what decides"),
        (
            ["--axis", "num_cams=1", "--axis", "num_cams=2"],
            "--axis num_cams=2: num_cams=1 has no effect: the axis is set again",
        ),
        (["measure.dataloader_prefetch=4"], "measure.dataloader_prefetch=4: has no effect: no worker loads batches"),
        (["launch.num_processes=2", "--select", "backend=single"], "launch.num_processes=2: has no effect: single"),
        (["--partition", "gpu"], "--partition gpu: has no effect: it works only with Slurm\n  add --launcher slurm"),
        (["--prologue", "module load x"], "--prologue module load x: has no effect: it works only with Slurm"),
        (["slurm.partition=gpu"], "slurm.partition=gpu: has no effect: it works only with Slurm\n  add"),
        (["slurm={partition: gpu}"], "slurm={partition: gpu}: has no effect: it works only with Slurm"),
        (["probe={}"], "probe={}: has no effect: no cell searches its batch"),
    ],
)
def test_what_changes_nothing_is_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "quickstart", *arguments, "--dry-run"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bench: {message}")
