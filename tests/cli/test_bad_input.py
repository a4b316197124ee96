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

    name: str
    text: str | bytes | None
    expected: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    beside: dict[str, str] = field(default_factory=dict)
    hardware: Hardware = CPU


def own(name: str, config: str, *expected: str, **beside: str) -> Case:
    files = {"own.yaml": config, **{f"{stem}.json": text for stem, text in beside.items()}}
    return Case(name, OWN, expected, beside=files)


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(9))
LONG = "x" * 100_000
MANY = "matrix: {backend: ddp, batch: 1, num_cams: RANGE, width: RANGE, scale: RANGE}".replace(
    "RANGE", f"{[*range(1, 40)]}"
)
DEEP = "matrix: " + "[" * 2000 + "]" * 2000

CASES = [
    # the file
    Case("missing file", None, ("bad.yaml: no such file", "did you mean 'bed.yaml'?"), beside={"bed.yaml": GOOD}),
    Case("empty file", "", ("bad.yaml: is empty", "allowed: a mapping")),
    Case("only a comment", "# nothing\n", ("bad.yaml: is empty",)),
    Case("a list at the top", "- 1\n", ("bad.yaml: holds [1]", "allowed: a mapping")),
    Case("not UTF-8", GOOD.encode() + b"# caf\xe9\n", (f"0xe9 at offset {len(GOOD) + 5}", "UTF-8")),
    Case("UTF-16", GOOD.encode("utf-16"), ("is not UTF-8", "offset 0")),
    Case("too large", "#" * 300_000, ("larger than 256 KiB",)),
    Case("name with a slash", GOOD + "name: ../x\n", ("bad.yaml:6: name: '../x'", "letters, digits")),
    # YAML
    Case("YAML syntax", GOOD + "exclude: [\n", ("bad.yaml:7", "is not YAML")),
    Case("an open bracket", GOOD + "exclude: [{batch: 1}\nname: x\n", ("bad.yaml:7", "close each [ and {")),
    Case("uneven indentation", GOOD + "train:\n   compile: true\n  steps: 1\n", ("indent all keys of one mapping",)),
    Case("a bracket too many", GOOD + "exclude: []]\n", ("bad.yaml:6", "closes nothing: remove it")),
    Case("two quoted values", GOOD + "workload_folder: 'a' b\n", ("bad.yaml:6", "one pair of quotation marks")),
    Case("tab as indentation", GOOD + "train:\n\tcompile: true\n", ("bad.yaml:7", "spaces, not tabs")),
    Case("duplicate key", GOOD + "matrix: {}\n", ("bad.yaml:6: matrix", "twice, first at", "bad.yaml:2")),
    Case("two documents", GOOD + "---\na: 1\n", ("bad.yaml:6", "is not YAML")),
    Case("undefined alias", GOOD + "exclude: *x\n", ("bad.yaml:6", "undefined alias")),
    Case("alias of itself", GOOD + "exclude: &x [*x]\n", ("bad.yaml:6: exclude[0]", "contains itself")),
    Case("billion laughs", BOMB, ("more than 10,000 values",)),
    Case("deep nesting", DEEP, ("nested",)),
    Case("a tag", GOOD + "exclude: !!python/object/apply:os.system [ls]\n", ("bad.yaml:6: exclude", "python/object")),
    Case("a date", GOOD + "train: {learning_rate: 2020-01-01}\n", ("bad.yaml:6: train.learning_rate", "is a date")),
    Case("a key that is no text", GOOD + "1: 2\n", ("bad.yaml:6", "the key 1 is not text")),
    Case("a list as key", GOOD + "? [1]\n: 2\n", ("bad.yaml:6", "a list or mapping is not text")),
    Case("a merge key", GOOD + "train: {<<: {compile: true}}\n", ("bad.yaml:6", "merge keys")),
    Case("NaN", GOOD + "train: {learning_rate: .nan}\n", ("bad.yaml:6: train.learning_rate", "finite")),
    Case("infinity", GOOD + "launch: {attempt_timeout_s: 1e999}\n", ("bad.yaml:6", "finite numbers")),
    Case("huge integer", GOOD + f"measure: {{steps: {10**30}}}\n", ("bad.yaml:6: measure.steps", "below 2**63")),
    Case("half a surrogate", GOOD + 'name: "\\ud800"\n', ("bad.yaml:6",)),
    # fields and types
    Case("unknown section", GOOD + "lauch: {}\n", ("bad.yaml:6: lauch: unknown field", "did you mean 'launch'?")),
    Case("unknown field", GOOD + "measure: {step: 3}\n", ("bad.yaml:6: measure.step", "did you mean 'steps'?")),
    Case(
        "field of another section", GOOD + "warmup_steps: 3\n", ("bad.yaml:6", "did you mean 'measure.warmup_steps'?")
    ),
    Case("text for an int", GOOD + "measure: {steps: '3'}\n", ("measure.steps: '3' cannot", "allowed: a whole number")),
    Case("bool for an int", GOOD + "measure: {steps: true}\n", ("measure.steps: true cannot", "a whole number")),
    Case("float for an int", GOOD + "measure: {steps: 2.5}\n", ("measure.steps: 2.5 cannot", "a whole number")),
    Case("null for an int", GOOD + "measure: {steps: }\n", ("bad.yaml:6: measure.steps: null", "a whole number")),
    Case("int for a bool", GOOD + "train: {compile: 1}\n", ("train.compile: 1 cannot", "'none', 'unit' or 'model'")),
    Case("text for a section", GOOD + "launch: fast\n", ("bad.yaml:6: launch: 'fast'", "a mapping")),
    Case("null for a list", GOOD + "exclude:\n", ("bad.yaml:6: exclude: null", "a list")),
    Case("zero steps", GOOD + "measure: {steps: 0}\n", ("measure.steps: 0 cannot", "at least 1")),
    Case(
        "two implementations",
        GOOD + "train: {fused: true, foreach: true}\n",
        ("bad.yaml:6: train: {", "fused and foreach are two implementations of AdamW: choose one"),
    ),
    Case("not a choice", GOOD + "train: {optimizer: adam}\n", ("train.optimizer: 'adam'", "choose adamw, muon, none")),
    Case("mixed precision", GOOD + "launch: {mixed_precision: fp16}\n", ("'fp16'", "'bf16' or 'no'")),
    Case(
        "not a size", GOOD + "launch: {memory_limit: big}\n", ("memory_limit: 'big'", "a size such as 8GiB or 'auto'")
    ),
    Case("a share for a size", GOOD + "launch: {memory_limit: 90%}\n", ("'90%' cannot be used", "a size such as 8GiB")),
    Case("words behind a size", GOOD + "launch: {memory_limit: 8GiB each}\n", ("'8GiB each' cannot be used",)),
    Case(
        "8 B", GOOD + "launch: {memory_limit: 8}\n", ("8 B is less than any model needs: try 8GiB", "memory_limit: 8")
    ),
    Case("8 kB", GOOD + "launch: {memory_limit: 8kB}\n", ("bad.yaml:6: launch.memory_limit", "7.81 KiB is less than")),
    Case("several problems", GOOD + "measure: {steps: 0, seed: -1, x: 1}\n", ("measure.steps", "2 more problems")),
    Case(
        "not a share",
        GOOD + "probe: {tolerance: abc}\n",
        ("probe.tolerance: 'abc'", "a number or a percentage such as 3%"),
    ),
    Case("true for a share", GOOD + "probe: {headroom: true}\n", ("probe.headroom: true", "a percentage such as 3%")),
    # axes
    Case(
        "unknown backend",
        HEAD + "matrix:\n  backend: [ddp, fspd]\n  batch: 1\n",
        ("bad.yaml:3: matrix.backend[1]: 'fspd'", "zero3", "did you mean 'fsdp'?"),
    ),
    Case("a backend in capitals", HEAD + "matrix: {backend: [DDP], batch: 1}\n", ("'DDP'", "did you mean 'ddp'?")),
    Case(
        "backends without brackets",
        HEAD + "matrix:\n  backend: ddp, fsdp2\n  batch: 1\n",
        ("bad.yaml:3: matrix.backend[0]: 'ddp, fsdp2'", "write a list: [ddp, fsdp2]"),
    ),
    Case(
        "a longer name",
        HEAD + "matrix:\n  backend: ddp\n  batchsize: 1\n",
        ("bad.yaml:4: matrix.batchsize: unknown field", "did you mean 'batch'?"),
    ),
    Case(
        "unknown backend in include",
        GOOD + "include:\n  - {backend: zero4}\n",
        ("bad.yaml:7: include[0].backend: 'zero4'", "did you mean 'zero3'?"),
    ),
    Case(
        "unhashable backend", HEAD + "matrix: {backend: [[ddp]], batch: 1}\n", ('matrix.backend[0]: ["ddp"]', "zero3")
    ),
    Case("quoted number", GOOD + "measure: {steps: '3'}\n", ("bad.yaml:6: measure.steps: '3'", "remove the quotes: 3")),
    Case(
        "quoted batch", GOOD.replace("[1, 2]", "[1, '2']"), ("bad.yaml:5: matrix.batch[1]: '2'", "remove the quotes: 2")
    ),
    Case("quoted axis value", GOOD.replace("[1, 4]", "['4']"), ("bad.yaml:4: matrix.num_cams[0]", "quotes: 4")),
    Case(
        "quoted switch",
        GOOD + "  grad_ckpt: ['true']\n",
        ("bad.yaml:6: matrix.grad_ckpt[0]: 'true'", "remove the quotes: true"),
    ),
    Case("text for a number", GOOD + "measure: {steps: three}\n", ("bad.yaml:6: measure.steps: 'three'",)),
    Case("unknown axis", GOOD + "  num_cam: [1]\n", ("bad.yaml:6: matrix.num_cam", "did you mean 'num_cams'?")),
    Case(
        "axis value of the wrong type",
        GOOD.replace("[1, 4]", "[1, four]"),
        ("bad.yaml:4: matrix.num_cams[1]: 'four'", "a whole number"),
    ),
    Case(
        "axis value out of range", GOOD.replace("[1, 4]", "[1, 9]"), ("bad.yaml:4: matrix.num_cams[1]: 9", "at most 8")
    ),
    Case(
        "axis value not a choice",
        GOOD + "  attention: [sdpaa]\n",
        ("bad.yaml:6: matrix.attention", "'eager' or 'sdpa'"),
    ),
    Case(
        "nested axis", GOOD.replace("[1, 4]", "[[1, 4]]"), ("bad.yaml:4: matrix.num_cams[0]: [1, 4]", "a whole number")
    ),
    Case(
        "values that do not go together",
        GOOD + "  width: [2]\n",
        ("bad.yaml:4: matrix.num_cams[1]", "width=2 is less than num_cams=4"),
    ),
    Case("empty axis", GOOD + "  attention: []\n", ("bad.yaml:6: matrix.attention: []", "at least 1")),
    Case(
        "value listed twice",
        GOOD.replace("[1, 4]", "[1, 4, 1]"),
        ("bad.yaml:4: matrix.num_cams[2]: 1 is listed twice",),
    ),
    Case("no axes at all", HEAD, ("bad.yaml", "nothing to measure")),
    Case("no backend", HEAD + "matrix: {batch: 1}\n", ("bad.yaml:2: matrix.backend: no backend", "zero3")),
    Case(
        "no backend in include beside axes",
        GOOD + "defaults: {attention: sdpa}\ninclude:\n  - {batch: 8}\n",
        ("bad.yaml:8: include[0].backend: no backend", "matches no combination", "in defaults", "under matrix.batch"),
    ),
    Case("no backend in include", HEAD + "include:\n  - {batch: 1}\n", ("bad.yaml:3: include[0].backend: no backend",)),
    Case("no batch", HEAD + "matrix: {backend: ddp}\n", ("bad.yaml:2: matrix.batch: no batch",)),
    Case(
        "batch 0",
        GOOD.replace("[1, 2]", "[1, 0]"),
        ("bad.yaml:5: matrix.batch[1]: 0", "batches per rank, such as [1, 2, 4], or probe"),
    ),
    Case("batch true", GOOD.replace("[1, 2]", "true"), ("bad.yaml:5: matrix.batch", "true cannot")),
    Case(
        "batch as text", GOOD + "include:\n  - {backend: zero2, batch: big}\n", ("bad.yaml:7: include[0].batch: 'big'",)
    ),
    Case("batch near probe", GOOD.replace("[1, 2]", "prob"), ("bad.yaml:5: matrix.batch[0]: 'prob'", "or probe")),
    Case(
        "granularity above the cap",
        GOOD + "probe: {max_batch: 4, granularity: 8}\n",
        ("bad.yaml:6: probe", "granularity 8 is above the largest batch allowed, 4"),
    ),
    Case("cap below 1", GOOD + "probe: {max_batch: 0}\n", ("bad.yaml:6: probe.max_batch: 0", "at least 1")),
    Case("headroom above 1", GOOD + "probe: {headroom: 1.5}\n", ("bad.yaml:6: probe.headroom: 1.5", "up to 1")),
    Case("too many combinations", HEAD + MANY, ("bad.yaml:2: matrix: 59,319 combinations", "up to 10,000")),
    Case(
        "too much to compare",
        GOOD + f"include: {[{'width': 99 + index} for index in range(1001)]}\n",
        ("bad.yaml:6: include: 1,001 entries are too many", "up to 1,000"),
    ),
    # include, exclude, defaults
    Case(
        "exclude that matches nothing",
        GOOD + "exclude:\n  - {num_cams: 1}\n  - {num_cams: 3}\n",
        ("bad.yaml:8: exclude[1]", "num_cams is never 3", "allowed: 1, 4"),
    ),
    Case(
        "exclude of no axis",
        GOOD + "exclude:\n  - {attention: sdpa}\n",
        ("bad.yaml:7: exclude[0].attention", "num_cams"),
    ),
    Case("empty exclude", GOOD + "exclude: [{}]\n", ("bad.yaml:6: exclude[0]", "everything")),
    Case(
        "everything excluded",
        GOOD + "exclude: [{backend: ddp}, {backend: fsdp}]\n",
        ("bad.yaml:6: exclude: every combination is excluded",),
    ),
    Case(
        "unknown field in include",
        GOOD + "include:\n  - {attenton: sdpa}\n",
        ("bad.yaml:7: include[0].attenton", "did you mean 'attention'?"),
    ),
    Case(
        "wrong value in include", GOOD + "include: [{attention: fast}]\n", ("bad.yaml:6: include[0].attention: 'fast'",)
    ),
    Case(
        "wrong value in defaults", GOOD + "defaults: {grad_ckpt: maybe}\n", ("bad.yaml:6: defaults.grad_ckpt: 'maybe'",)
    ),
    Case(
        "wrong value in train axis",
        GOOD + "  compile: [no]\n",
        ("bad.yaml:6: matrix.compile[0]: 'no'", "'none', 'unit' or 'model'"),
    ),
    # the workload
    Case("unknown workload", "workload: {name: pi08}\n", ("bad.yaml:1: workload.name: 'pi08'", "did you mean 'pi07'?")),
    Case(
        "no such module", "workload: {name: 'nowhere.x:Y'}\n", ("bad.yaml:1: workload.name: cannot load 'nowhere.x:Y'",)
    ),
    Case(
        "no such function",
        "workload: {name: 'toy_workloads:Toi'}\n",
        ("bad.yaml:1: workload.name: cannot load", "toy_workloads defines no 'Toi'", "did you mean 'Toy'?"),
    ),
    Case(
        "not a module's name",
        "workload: {name: '..:Y'}\n",
        ("bad.yaml:1: workload.name: '..:Y'", "package.module:name"),
    ),
    Case(
        "unknown preset",
        GOOD.replace("tiny", "tinny"),
        ("bad.yaml:1: workload.preset: 'tinny'", "did you mean 'tiny'?"),
    ),
    Case(
        "unknown field of the workload",
        GOOD.replace("tiny", "tiny, num_cam: 2"),
        ("bad.yaml:1: workload.num_cam", "did you mean 'num_cams'?"),
    ),
    Case(
        "wrong field of the workload",
        GOOD.replace("tiny", "tiny, width: wide"),
        ("bad.yaml:1: workload.width: 'wide'",),
    ),
    Case(
        "infinite default of the workload",
        GOOD.replace(":Toy", ":Unbounded"),
        ("bad.yaml:1: workload.clip: inf is not a JSON value", "finite value, or null"),
    ),
    Case("default that is no data", GOOD.replace(":Toy", ":Opaque"), ("bad.yaml:1: workload: ", "stored as JSON")),
    # the machine
    Case(
        "more processes than GPUs",
        GOOD + "launch: {num_processes: 4}\n",
        ("bad.yaml:6: launch.num_processes: 4 processes", "1 to 2"),
        hardware=GPUS,
    ),
    # gradient accumulation, through each way in
    Case(
        "accumulation at the top", GOOD + "gradient_accumulation_steps: 2\n", ("bad.yaml:6", "accumulation is refused")
    ),
    Case(
        "accumulation in train",
        GOOD + "train: {gradient_accumulation_steps: 2}\n",
        ("bad.yaml:6: train.gradient_accumulation_steps: 2", "one optimizer step per batch"),
    ),
    Case("accumulation in launch", GOOD + "launch: {gradient_accumulation_steps: 1}\n", ("bad.yaml:6", "always 1")),
    Case("accumulation as an axis", GOOD + "  gradient_accumulation_steps: [1, 2]\n", ("bad.yaml:6", "is refused")),
    Case(
        "accumulation on the command line",
        GOOD,
        ("train.gradient_accumulation_steps", "is refused"),
        overrides=("train.gradient_accumulation_steps=4",),
    ),
    own(
        "accumulation in accelerate",
        "distributed_type: FSDP\ngradient_accumulation_steps: 4\n",
        "own.yaml:2: gradient_accumulation_steps: unknown field",
        "accelerate rejects it",
    ),
    own(
        "accumulation in its deepspeed_config",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n",
        "own.yaml:3: deepspeed_config.gradient_accumulation_steps: 4",
        "is refused",
    ),
    own(
        "accumulation in a DeepSpeed JSON",
        JSON,
        "ds.json:2: gradient_accumulation_steps: 8",
        "is refused",
        ds='{"zero_optimization": {},\n"gradient_accumulation_steps": 8}',
    ),
    # accelerate configs
    Case("no such accelerate config", OWN, ("bad.yaml:2", "own.yaml' does not exist")),
    own("MULTI_CPU", "distributed_type: MULTI_CPU\n", "own.yaml:1: distributed_type: 'MULTI_CPU'", "MULTI_GPU"),
    own("an unknown distributed type", "distributed_type: TPU\n", "own.yaml:1: distributed_type: 'TPU'", "FSDP"),
    own("fp16", "distributed_type: FSDP\nmixed_precision: fp16\n", "own.yaml:2: mixed_precision: 'fp16'", "bf16, no"),
    own(
        "two machines",
        DDP + "num_machines: 2\n",
        "own.yaml:2: num_machines: 2",
        "allowed: 1",
        "--launcher slurm --nodes 2",
    ),
    own("SageMaker", "compute_environment: AMAZON_SAGEMAKER\n", "own.yaml:1: compute_environment", "LOCAL_MACHINE"),
    own("accelerate config is a list", "- 1\n", "own.yaml: [1] cannot be used", "a mapping"),
    own("fsdp_config is text", "distributed_type: FSDP\nfsdp_config: x\n", "own.yaml:2: fsdp_config: 'x'", "a mapping"),
    own(
        "no such DeepSpeed JSON",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: no.json\n",
        "own.yaml:3",
        "does not exist",
    ),
    own(
        "DeepSpeed JSON with a syntax error",
        JSON,
        "ds.json:2",
        "is not JSON",
        ds="{\n]",
    ),
    own(
        "fp16 in a DeepSpeed JSON",
        JSON,
        "ds.json:1: fp16.enabled",
        ds='{"zero_optimization": {}, "fp16": {"enabled": true}}',
    ),
    own(
        "autocast in a DeepSpeed JSON",
        JSON,
        "ds.json:1: torch_autocast.enabled: true",
        "launch.mixed_precision: bf16",
        ds='{"zero_optimization": {}, "torch_autocast": {"enabled": true}}',
    ),
    own(
        "checkpointing by FSDP",
        "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: true}\n",
        "own.yaml:2: fsdp_config.fsdp_activation_checkpointing: true",
        "grad_ckpt: true",
    ),
    own(
        "compilation by accelerate",
        "distributed_type: MULTI_GPU\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
        "own.yaml:3: dynamo_config.dynamo_backend: 'INDUCTOR'",
        "train.compile: unit",
    ),
    own(
        "a choice of GPUs",
        "distributed_type: MULTI_GPU\ngpu_ids: '0,1'\n",
        "own.yaml:2: gpu_ids: '0,1': selecting GPUs here is refused",
        "allowed: all",
        "CUDA_VISIBLE_DEVICES",
    ),
    own("a choice of one GPU", DDP + "gpu_ids: 0\n", "own.yaml:2: gpu_ids: 0", "CUDA_VISIBLE_DEVICES"),
    own(
        "compilation, as older files say it",
        DDP + "dynamo_backend: EAGER\n",
        "own.yaml:2: dynamo_backend",
        "train.compile",
    ),
    own("no distributed type", "mixed_precision: bf16\n", "own.yaml: distributed_type: is required", "MULTI_GPU"),
    own(
        "a typo at the top",
        DDP + "num_proceses: 2\n",
        "own.yaml:2: num_proceses: unknown",
        "did you mean 'num_processes'?",
    ),
    own(
        "a typo for FSDP",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_ofload_params: true\n",
        "own.yaml:3: fsdp_config.fsdp_ofload_params: unknown field",
        "ignore it without a word",
        "did you mean 'fsdp_offload_params'?",
    ),
    own(
        "a strategy of version 1 with version 2",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: FULL_SHARD\n",
        "own.yaml:4: fsdp_config.fsdp_reshard_after_forward: 'FULL_SHARD' fails with fsdp_version 2",
        "true or false",
    ),
    own(
        "an unknown policy of FSDP",
        "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_WRAP}\n",
        "own.yaml:2: fsdp_config.fsdp_auto_wrap_policy: 'TRANSFORMER_WRAP'",
        "did you mean 'TRANSFORMER_BASED_WRAP'?",
    ),
    own(
        "a typo for DeepSpeed",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stages: 3}\n",
        "own.yaml:2: deepspeed_config.zero_stages: unknown field",
        "did you mean 'zero_stage'?",
    ),
    own(
        "a typo for the mesh",
        "distributed_type: FSDP\nparallelism_config: {dp_shard_size: 2}\n",
        "own.yaml:2: parallelism_config.dp_shard_size: unknown field",
        "did you mean 'parallelism_config_dp_shard_size'?",
    ),
    own(
        "a typo in a DeepSpeed JSON",
        JSON,
        "ds.json:3: zero_optimization.overlap_com: unknown field",
        "did you mean 'overlap_comm'?",
        ds='{"zero_optimization": {\n"stage": 2,\n"overlap_com": true}}',
    ),
    own(
        "a typo at the top of a DeepSpeed JSON",
        JSON,
        "ds.json:2: gradient_cliping: unknown field",
        "did you mean 'gradient_clipping'?",
        ds='{"zero_optimization": {},\n"gradient_cliping": 1.0}',
    ),
    own("a DeepSpeed JSON without ZeRO", JSON, "ds.json: zero_optimization: accelerate requires", ds="{}"),
    own(
        "an optimizer of DeepSpeed without a type",
        JSON,
        "ds.json:2: optimizer.type: DeepSpeed needs its type",
        "or leave optimizer out",
        ds='{"zero_optimization": {},\n"optimizer": {"params": {}}}',
    ),
    own(
        "a learning rate in a DeepSpeed JSON that is no number",
        JSON,
        "ds.json:2: optimizer.params.lr: 'abc' is not supported",
        "a number, at least 0, or auto",
        ds='{"zero_optimization": {}, "optimizer": {"type": "AdamW",\n"params": {"lr": "abc"}}}',
    ),
    own(
        "a version of FSDP that is no number",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: x\n",
        "own.yaml:3: fsdp_config.fsdp_version: 'x'",
        "1, 2",
    ),
    own(
        "a strategy of FSDP that is no strategy",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 9\n",
        "own.yaml:3: fsdp_config.fsdp_sharding_strategy: 9",
        "FULL_SHARD",
    ),
    own(
        "auto that only Trainer resolves",
        JSON,
        "ds.json:2: optimizer.params.betas: 'auto' is not resolved by accelerate",
        "write the value",
        ds='{"zero_optimization": {}, "optimizer": {"type": "AdamW",\n"params": {"betas": "auto"}}}',
    ),
    own(
        "precision beside a DeepSpeed JSON",
        JSON + "mixed_precision: bf16\n",
        "own.yaml:3: mixed_precision: accelerate rejects this field beside deepspeed_config_file",
        "set launch.mixed_precision in the matrix",
        ds='{"zero_optimization": {}}',
    ),
    own(
        "tensor parallelism",
        "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_tp_size: 2\n",
        "own.yaml:3: parallelism_config.parallelism_config_tp_size: 2",
        "tensor parallelism",
    ),
    Case(
        "own backend with a taken name",
        HEAD + "matrix: {backend: {name: ddp, config_file: own.yaml}, batch: 1}\n",
        ("bad.yaml:2: matrix.backend[0].name: 'ddp'", "not the name of a built-in"),
        beside={"own.yaml": "{}"},
    ),
    Case(
        "own backend with an unknown field",
        OWN.replace("own.yaml", "own.yaml, rank: 1"),
        ("backend[0].rank", "unknown"),
    ),
    # the command line
    Case("override without a value", GOOD, ("measure.steps", "name=value"), overrides=("measure.steps",)),
    Case(
        "override of an unknown field",
        GOOD,
        ("steps=5: steps: unknown", "did you mean 'measure.steps'?"),
        overrides=("steps=5",),
    ),
    Case(
        "override of a workload field by its last part",
        GOOD,
        ("did you mean 'workload.num_cams'?",),
        overrides=("num_cams=2",),
    ),
    Case(
        "override hidden by an axis",
        GOOD,
        ("workload.num_cams=2: has no effect: num_cams is set in matrix", "--axis num_cams=2"),
        overrides=("workload.num_cams=2",),
    ),
    Case(
        "override hidden by --axis",
        GOOD,
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in matrix", "--axis grad_ckpt=true"),
        overrides=("workload.grad_ckpt=true",),
        axes=("grad_ckpt=false",),
    ),
    Case(
        "override hidden by a default",
        GOOD + "defaults: {grad_ckpt: false}\n",
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in defaults", "set defaults.grad_ckpt=true"),
        overrides=("workload.grad_ckpt=true",),
    ),
    Case(
        "override hidden by include",
        GOOD + "include: [{num_cams: 1, grad_ckpt: true}, {num_cams: 4, grad_ckpt: false}]\n",
        ("workload.grad_ckpt=true: has no effect: grad_ckpt is set in include", "change it in the file"),
        overrides=("workload.grad_ckpt=true",),
    ),
    Case(
        "override of the wrong type",
        GOOD,
        ("measure.steps=few: measure.steps: 'few'", "a whole number"),
        overrides=("measure.steps=few",),
    ),
    Case(
        "override below a value",
        GOOD,
        ("measure.steps is 5", "no fields"),
        overrides=("measure.steps=5", "measure.steps.x=1"),
    ),
    Case("override that is no YAML", GOOD, ("name=[: is not YAML",), overrides=("name=[",)),
    Case("unknown --axis", GOOD, ("--axis num_cam=1: matrix.num_cam", "did you mean 'num_cams'?"), axes=("num_cam=1",)),
    Case("empty --axis", GOOD, ("--axis num_cams=: matrix.num_cams", "at least 1"), axes=("num_cams=",)),
    Case("wrong --axis value", GOOD, ("--axis num_cams=1,x: matrix.num_cams[1]: 'x'",), axes=("num_cams=1,x",)),
    Case("unknown --select", GOOD, ("--select backed=ddp: unknown", "did you mean 'backend'?"), select=("backed=ddp",)),
    Case(
        "--select of an absent value",
        GOOD,
        ("backend is never 'zero2'", "allowed: 'ddp', 'fsdp'"),
        select=("backend=ddp,zero2",),
    ),
    Case("--select without a value", GOOD, ("--select backend",), select=("backend",)),
    Case(
        "--select of two conditions",
        GOOD,
        ("is more than one condition", "repeat the option: --select backend=ddp --select num_cams=1"),
        select=("backend=ddp num_cams=1",),
    ),
    Case(
        "--exclude that matches nothing",
        GOOD,
        ("--exclude", "num_cams is never 3", "1, 4"),
        exclude=("backend=ddp num_cams=3",),
    ),
    Case("--exclude of everything", GOOD, ("--exclude", "everything is excluded"), exclude=("backend=ddp,fsdp",)),
    Case("empty --exclude", GOOD, ("--exclude",), exclude=("",)),
    # whatever is long is shortened, and what a terminal would obey is written out
    Case("long field", GOOD + f"{LONG[:1000]}: 1\n", ("bad.yaml:6", "unknown field 'xxx", "allowed: name, workload")),
    Case("long workload", f"workload: {{name: {LONG}}}\n", ("bad.yaml:1: workload.name", "is not a workload")),
    Case("long override", GOOD, ("=5: xxx", "unknown field"), overrides=(f"{LONG}=5",)),
    Case("long --axis", GOOD, ("--axis num_cams=xxx", "matrix.num_cams[0]"), axes=(f"num_cams={LONG}",)),
    Case("long --select", GOOD, ("--select xxx", "unknown field"), select=(f"{LONG}=1",)),
    Case("long --exclude", GOOD, ("--exclude", "num_cams is never"), exclude=(f"num_cams={LONG}",)),
    Case(
        "many allowed values",
        HEAD + f"matrix: {{backend: ddp, batch: {[*range(1, 5000)]}}}\n",
        ("batch is never 9999", "4999"),
        select=("batch=9999",),
    ),
    Case("escape code", GOOD + '"\\e[31m": 1\n', ("bad.yaml:6: \\x1b[31m: unknown field",)),
    Case("line break", GOOD + '"a\\nb": 1\n', ("bad.yaml:6: a b: unknown field 'a\\nb'",)),
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
    case = Case("good", GOOD, ())
    load_and_expand(place(case, tmp_path), case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
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


@pytest.mark.parametrize("case", [case for case in CASES if case.hardware is CPU], ids=lambda case: case.name)
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
    case = Case("large", GOOD.replace("tiny", "tiny, layers: [1, 2, 3]"), ())
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
    case = Case("no config", GOOD.replace("tests.toy_workloads:Toy', preset: tiny", "bare:Bare'"), ())
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
    case = Case("plain", GOOD.replace("tests.toy_workloads:Toy', preset: tiny", f"{module}:Plain'"), ())
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
    place(Case("good", GOOD, ()), tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--out", "out"])
    assert done.exit_code == 2
    assert done.stderr == (
        f"bench: environment: OMP_NUM_THREADS: {threads!r} is not a number of threads\n"
        "  allowed: a whole number from 1\n  unset OMP_NUM_THREADS for bench's own choice\n"
    )
    assert not Path("out").exists()
