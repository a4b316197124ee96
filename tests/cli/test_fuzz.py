"""Whatever a matrix file and the command line hold, `bench run --dry-run` shows cells, or in a few lines what is wrong.

Shipped matrices are mutated as texts and as data. `make fuzz` tries ten thousand, `make test` the first few hundred.
"""

import copy
import json
import math
import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from typer.testing import CliRunner, Result

from bench import machine
from bench.cli.app import app
from bench.records.machine import Hardware

SAMPLES = int(os.environ.get("BENCH_FUZZ_SAMPLES", "300"))
ROWS, COLUMNS = 24, 120
"""One screen."""
CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=16 * 2**30)
GPUS = Hardware(device="cuda", devices=2, cores=16, memory_bytes=80 * 2**30)
SHIPPED = [path.read_text() for path in sorted((Path(__file__).parents[2] / "matrices").glob("*.yaml"))]

EVERYTHING = """\
name: everything
workload: {name: pi07, preset: tiny, n_obs_history: 2}
matrix:
  backend: [fsdp, zero2, {name: mine, config_file: own.yaml}]
  num_cams: [1, 4]
  attention: [sdpa, eager]
  batch: [1, 2, 4]
exclude:
  - {attention: eager, num_cams: 4}
include:
  - {attention: sdpa, grad_ckpt: true}
  - {backend: ddp, num_cams: 1, attention: sdpa, batch: probe}
defaults: {grad_ckpt: false}
launch: {num_processes: auto, mixed_precision: bf16, memory_limit: 4GiB, attempt_timeout_s: 1800, hang_after_s: null}
measure: {warmup_steps: 20, steps: 50, phase_steps: 10, seed: 1000, dataloader_workers: 0, dataloader_prefetch: 2}
train: {optimizer: adamw, fused: null, learning_rate: 1.0e-4, max_grad_norm: 1.0, compile: none}
probe: {max_batch: 64, granularity: 1, tolerance: 0, headroom: 90%}
claims:
  - say: zero2 holds at least 11 GB more than fsdp
    metric: peak_allocated_bytes_rank_max
    of: {backend: zero2}
    against: {backend: fsdp}
    where: {num_cams: 1, batch: 2}
    difference: {at_least: 11GB}
  - say: zero2 is the faster one
    metric: samples_per_s_global
    of: {backend: zero2}
    against: {backend: fsdp}
    where: {batch: best}
    ratio: {at_least: 1.27x, at_most: 2x}
"""
OWN = """\
distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: FULL_SHARD}
"""
OWN_DEEPSPEED = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
ENGINE = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 1}'
WORDS = [
    ("measure.steps=3",),
    ("workload.preset=tiny",),
    ("matrix.batch=[1, 2]",),
    ("matrix.backend=[ddp, {name: mine, config_file: own.yaml}]",),
    ("matrix.backend={name: mine, config_file: nowhere.yaml}",),
    ("launch.num_processes=4",),
    ("launch.memory_limit=1GiB",),
    ("probe.headroom=80%",),
    ("--axis", "num_cams=1,2"),
    ("--axis", "batch=probe"),
    ("--axis", "grad_ckpt=true,false"),
    ("--select", "backend=ddp,fsdp,zero2"),
    ("--select", "batch=2"),
    ("--exclude", "backend=fsdp batch=1"),
    ("--exclude", "num_cams=1"),
]
PIECES = [
    *("\t", "\0", "\n", "\r", "  ", "\ufeff", "\x1b[31m", "\x85", "\u2028", "\u202e", "é", "🤗", "\ud7ff", "\\ud800"),
    *("'", '"', "#", ",", ": ", "- ", "? ", "{", "}", "[", "]", "|\n", ">\n", "@", "`", "%", "=", "--", "\\"),
    *("&a ", "*a", "<<: *a", "<<: ", "!!set ", "!!binary ", "!x ", "!!python/object/apply:os.system ", "!!float "),
    *("---\n", "...\n", "%YAML 1.1\n", "null", "~", "true", "yes", "no", "on", "off", "-1", "0", "1.5", "1_000", "0x"),
    *("1e999", ".nan", "-.inf", "1:30", "0o17", "9" * 20, "9" * 5000, "2020-01-01", "2001-12-14t21:59:43.10-05:00"),
    *("unheard_of", "probe", "auto", "single", "zero3", "backend", "batch", "preset", "include", "exclude", "defaults"),
    *("workload", "measure", "claims", "gradient_accumulation_steps", "config_file", "os.path:join", "../../x"),
    *("x" * 5000, "[" * 500, "{a: " * 300, "a.b." * 100, f"{[*range(2000)]}"),
]
ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        4,
        2**40,
        2**63,
        10**400,
        0.5,
        -0.0,
        1e300,
        math.nan,
        -math.inf,
        date(2020, 1, 1),
    ),
    *("", "x", "auto", "probe", "ddp", "zero2", "tiny", "8GiB", "eager", "yes", "on", "a/b", "..", "\0", "é" * 99),
    *("9" * 25, "x" * 100_000, "\x1b[31m", "\ud800", "a\nb", b"bytes", {"a"}),
    *([], [1], [1, 1], [[1]], ["ddp"], [None], [*range(1, 40)], [*range(3000)], ["probe", 1, "probe"]),
    *({}, {"x": 1}, {"backend": "ddp"}, {"backend": "fsdp", "batch": [1, 2]}, {"a": {"b": {"c": [{"d": 1}]}}}),
    *({"name": "own", "config_file": "/dev/zero"}, {"name": "mine", "config_file": "own.yaml"}, {"name": 1}),
]


@dataclass(frozen=True)
class Sample:
    """A command line and the files that it reads."""

    matrix: bytes
    own: bytes
    words: tuple[str, ...]
    hardware: Hardware


def edited(draw: DrawFn, text: str, most: int = 3) -> str:
    """``text`` after a few edits of its characters, words and lines."""
    for _ in range(draw(st.integers(1, most))):
        lines = text.splitlines(keepends=True) or [""]
        tokens = re.findall(r"\w+|\W", text) or [""]
        line = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 8)):
            case 0:
                del lines[line]
                text = "".join(lines)
            case 1:
                lines.insert(draw(st.integers(0, len(lines))), lines[line])
                text = "".join(lines)
            case 2:
                other = draw(st.integers(0, len(lines) - 1))
                lines[line], lines[other] = lines[other], lines[line]
                text = "".join(lines)
            case 3:
                indent = draw(st.sampled_from(["", " ", "  ", "   ", "\t", "- ", "# "]))
                lines[line] = indent + (lines[line].lstrip() if draw(st.booleans()) else lines[line])
                text = "".join(lines)
            case 4:
                at = draw(st.integers(0, len(text)))
                text = text[:at] + text[at + draw(st.integers(1, 20)) :]
            case 5 | 6:
                tokens[draw(st.integers(0, len(tokens) - 1))] = draw(st.sampled_from(PIECES))
                text = "".join(tokens)
            case _:
                at = draw(st.integers(0, len(text)))
                text = text[:at] + draw(st.sampled_from(PIECES) | st.text(max_size=8)) + text[at:]
    return text


Place = tuple[Any, Any]
"""A mapping or list, and a key or index in it."""


def places(data: Any) -> list[Place]:
    """Every value below ``data``, by where it lies."""
    keys = list(data) if isinstance(data, dict) else [*range(len(data))] if isinstance(data, list) else []
    return [place for key in keys for place in [(data, key), *places(data[key])]]


def rearranged(draw: DrawFn, data: Any) -> Any:
    """``data`` after a few edits of its values and keys."""
    data = {"top": copy.deepcopy(data)}
    for _ in range(draw(st.integers(1, 3))):
        inside, key = draw(st.sampled_from(places(data["top"]) or places(data)))
        match draw(st.integers(0, 7)):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[near(draw, str(key))] = inside.pop(key)
            case 1 | 2:
                target, there = draw(st.sampled_from(places(data)))
                moved = copy.deepcopy(inside[key])
                target[there] = {**target[there], key: moved} if isinstance(target[there], dict) else [moved]
            case 3 if isinstance(inside, list):
                inside.append(inside[key])
            case 3:
                inside[key] = {"also": inside[key]} if draw(st.booleans()) else [inside[key], inside[key]]
            case _:
                inside[key] = copy.deepcopy(draw(st.sampled_from(ODD) | st.text(max_size=8) | st.floats()))
        if "top" not in data:
            return draw(st.sampled_from(ODD))
    return data["top"]


def near(draw: DrawFn, word: str) -> str:
    """``word`` as a slip of the finger makes it."""
    at = draw(st.integers(0, len(word)))
    slips = [
        word[:at] + word[at + 1 :],
        word[:at] + word[at - 1 : at] + word[at:],
        word.upper(),
        f"{word}s",
        f" {word}",
    ]
    return draw(st.sampled_from(slips))


@st.composite
def samples(draw: DrawFn) -> Sample:
    text, own, words = draw(st.sampled_from([EVERYTHING, *SHIPPED])), draw(st.sampled_from([OWN, OWN_DEEPSPEED])), []
    how = draw(st.integers(0, 9))
    if how % 2:
        data = rearranged(draw, yaml.safe_load(text))
        text = written(draw, data)
    if how % 2 == 0 or how == 9:
        text = edited(draw, text)
    if how in (6, 7, 8):
        for _ in range(draw(st.integers(1, 3))):
            *option, word = draw(st.sampled_from(WORDS))
            words += [*option, edited(draw, word, most=2) if draw(st.booleans()) else word]
        own = edited(draw, own) if draw(st.booleans()) else own
    return Sample(
        matrix=text.encode("utf-8", "surrogatepass"),
        own=own.encode("utf-8", "surrogatepass"),
        words=tuple(word.replace("\0", "") for word in words),  # which no command line can hold
        hardware=draw(st.sampled_from([CPU, GPUS])),
    )


def written(draw: DrawFn, data: Any) -> str:
    """As YAML in one of its styles, or as JSON, which is YAML too."""
    if draw(st.booleans()):
        return yaml.safe_dump(data, sort_keys=False, default_flow_style=draw(st.sampled_from([None, True, False])))
    return json.dumps(data, default=str, indent=draw(st.sampled_from([None, 1])))


def dry_run(sample: Sample, folder: Path) -> Result:
    (folder / "matrix.yaml").write_bytes(sample.matrix)
    (folder / "own.yaml").write_bytes(sample.own)
    (folder / "ds.json").write_text(ENGINE)
    with patch.object(machine, "detect", lambda: sample.hardware):
        return CliRunner().invoke(app, ["run", str(folder / "matrix.yaml"), "--dry-run", *sample.words])


def wrong(result: Result) -> str | None:
    """What is not as it should be."""
    if result.exit_code not in (0, 2) or not isinstance(result.exception, SystemExit | None):
        return f"ended with {result.exit_code}: {result.exception!r}"
    if result.exit_code == 0:
        return None if result.stdout and not result.stderr else "shows nothing, or complains all the same"
    rows = sum(max(1, math.ceil(len(line) / COLUMNS)) for line in result.stderr.splitlines())
    if result.stdout or not 1 <= rows <= ROWS:
        return f"a message of {rows} rows"
    if not all(char.isprintable() or char == "\n" for char in result.stderr):
        return "a message with control characters"
    return None


def check(sample: Sample) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        result = dry_run(sample, Path(folder))
    problem = wrong(result)
    assert problem is None, (
        f"{problem}\non {sample.hardware.device}: bench run matrix.yaml --dry-run {shlex.join(sample.words)}\n"
        f"matrix.yaml: {sample.matrix!r}\nown.yaml: {sample.own!r}\n{result.stderr[-5000:]}"
    )
    return result


@pytest.mark.timeout(7200)
@settings(max_examples=SAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(samples())
def test_a_mutated_matrix_shows_its_cells_or_what_is_wrong_with_it(sample: Sample) -> None:
    check(sample)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_get_a_message(content: bytes) -> None:
    check(Sample(matrix=content, own=b"", words=(), hardware=CPU))


@pytest.mark.parametrize("text", [EVERYTHING, *SHIPPED])
def test_what_is_mutated_is_good(text: str) -> None:
    assert check(Sample(matrix=text.encode(), own=OWN.encode(), words=WORDS[0], hardware=CPU)).exit_code == 0
