"""Tables as other projects publish them: their columns and their ways to write numbers, with figures made up here."""

import json
from pathlib import Path

import pytest
from commands import bench as command

import bench
from bench.errors import InputError, InputErrors
from bench.imported import Imported, read_all
from bench.matrix.yaml_file import parse_json
from bench.records.outcome import Oom, Reported, Result
from bench.report.advice import advise
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.show import show

AT = "2030-01-01T00:00:00+00:00"

FOUNDRY = """\
Model,SeqLen (T),# GPUs,GPU,MFU,HFU,MicroBatchSize,GradAccum,GlobalBatchSize,Throughput (S/s),Throughput (T/s),\
Throughput (T/s/GPU),GlobalBatchSize (T),Precision,MP Mode,Sharding Strategy,Activation Checkpointing,\
Activation CPUOffload,NumParams
9b,512,8,h100_80gb,41.2,54.9,128,2,2048,158,81408,10176,1048576,amp_bf16,PURE,FULL_SHARD,True,False,9000000000
9b,512,8,h100_80gb,41.0,54.7,128,2,2048,158,80896,10112,1048576,amp_bf16,PURE,FULL_SHARD,True,False,9000000000
40b,8192,8,h100_80gb,25.1,33.5,1,16,128,0,7372,921,1048576,amp_fp8,DEFAULT,SHARD_GRAD_OP,False,False,40000000000
"""
TITAN = """\
# Performance

**Table 1** FSDP on 8 GPUs, local batch size 2.

| Techniques | TPS/GPU | Memory(GiB) |
| ----- | ----: | ----: |
| FSDP | 5,120 | 80.4 |
| FSDP + torch.compile | 6,144[^1] | 76.1 |

**Table 2**

| Parallelism | Sequence Length | TPS/GPU | Memory(GiB) |
| ----- | ----: | ----: | ----: |
| FSDP 8, CP 1 | 32768 | 3,200 | 83.0 |

| repo | commit |
| --- | --- |
| torch | [0a1b2c](https://example.org/0a1b2c) |
"""
FMS = """\
| Model Size | Hardware | Sharding Strategy | Activation Checkpointing | Batch Size | \
Training Throughput <br/> (64 GPUs) | Profile Trace |
|--|--|--|--|--|--|--|
| 3b | 64 * A100 | HSDP | False | 4 | **7168 token/gpu/sec** | [3b trace](https://example.org/a) |
| 20b | 64 * A100 | FSDP | True | 2 | **1024 token/gpu/sec** | [20b trace](https://example.org/b) |
"""
LITGPT = """\
| Size  | Model | Quantization | Microbatch size | Trainable parameters | GPU | Max GPU RAM | Time 1k iterations |
|-------|-------|--------------|-----------------|----------------------|-----|-------------|--------------------|
| 2 B   | tiny  | None         | 1               | 1,234,567            | 2 x A100 | 4.50 GB | 1.50 min           |
| 2 B   | tiny  | bnb.nf4      | 1               | 1,234,567            | 2 x A100 | 3.50 GB | 45.0 s             |
| 2 B   | tiny  | bnb.nf4      | 2               | 1,234,567            | 2 x A100 | N/A     | -                  |
|       |       |              |                 |                      |          |         |                    |
| 30 B  | Big   | None         | 1               | 6,543,210            | 4 x A100 | OOM     | -                  |
| 30 B  | Big   | bnb.nf4      | 1               | 6,543,210            | 4 x A100 | CUDA error: no handle | -    |
"""
TRAINER = {
    "epoch": 2.0, "total_flos": 1.2e15, "train_loss": 1.25, "train_runtime": 120.5, "train_samples": 1000,
    "train_samples_per_second": 16.6, "train_steps_per_second": 0.519,
}  # fmt: skip
PEFT = {
    "run_info": {
        "created_at": "2030-01-01T00:00:00+00:00", "total_time": 900.0, "experiment_name": "lora/small-rank8",
        "train_config": {"model_id": "example/small", "dtype": "bfloat16", "max_seq_length": 512, "batch_size": 4,
                         "batch_size_eval": 50, "max_steps": 500, "compile": False, "seed": 0,
                         "optimizer_type": "AdamW", "optimizer_kwargs": {"lr": 0.0002}, "attn_implementation": None},
        "peft_config": {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]},
        "error_msg": "",
    },
    "train_info": {
        "cuda_memory_reserved_avg": 8_000_000_000, "cuda_memory_max": 16_000_000_000, "train_time": 700.0,
        "num_trainable_params": 1_000_000, "status": "success",
        "metrics": [
            {"step": 250, "train time": 30.0, "train samples": 1000, "tokens / sec": 7000.0, "eval time": 300.0},
            {"step": 500, "train time": 50.0, "train samples": 2000, "tokens / sec": 4200.0, "eval time": 300.0},
            {"step": 500, "test accuracy": 0.4, "train samples": 2000},
        ],
    },
    "meta_info": {"package_info": {"torch-version": "2.7.1"}, "system_info": {"gpu": "Some GPU"}},
}  # fmt: skip


def imported(folder: Path, name: str, text: str, *settings: str, maps: tuple[str, ...] = (), **more: int) -> Imported:
    (folder / name).write_text(text)
    return read_all([folder / name], settings, AT, maps, **more)


def figures(result: Result) -> Reported:
    assert isinstance(result.outcome, Reported)
    return result.outcome


def test_llm_foundrys_table_with_global_batches_and_tokens(tmp_path: Path) -> None:
    """By one command, too: what a user sees of it."""
    (tmp_path / "foundry.csv").write_text(FOUNDRY)
    done = command("import", str(tmp_path / "foundry.csv"), "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    rows = bench.load(tmp_path / "run")
    assert list(rows["batch_global"]) == [2048, 128]
    assert list(rows["batch"]) == [128, 1]
    assert list(rows["launches"]) == [2, 1]  # two rows with the same settings
    assert list(rows["samples_per_s_global"]) == [pytest.approx(158.5, rel=1e-3), pytest.approx(7372 / 8192)]
    assert list(rows["mixed_precision"]) == ["bf16", "fp8"]
    assert list(rows["backend"]) == ["fsdp", "fsdp_grad_op"]
    assert list(rows["accumulate"]) == [2, 16]
    assert list(rows["workload"]) == ["9b", "40b"]
    notes = json.loads(rows["notes"][1])
    assert (notes["MFU"], notes["Throughput (T/s)"], notes["NumParams"]) == ("25.1", "7372", "40000000000")
    assert "kept as notes: MFU, HFU, " in done.stderr
    shown = command("show", "workload=40b", str(tmp_path / "run"))
    assert "Notes of the source" in shown.output
    assert "25.1" in shown.output


def test_torchtitans_markdown_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 2 tables of figures") as error:
        imported(tmp_path, "titan.md", TITAN)
    assert "2 (" in str(error.value)
    assert "--table N" in str(error.value)
    settings = ("workload=llama", "backend=fsdp2", "num_processes=8", "batch=2")
    first, second = imported(tmp_path, "titan.md", TITAN, *settings, "seq_len=8192", number=1).results
    assert figures(first).samples_per_s_global == 5120 * 8 / 8192
    assert figures(second).samples_per_s_global == 6144 * 8 / 8192
    assert second.attempt.cell.options["techniques"] == "FSDP + torch.compile"
    assert (second.attempt.cell.mixed_precision, second.stated) == (None, ())
    assert second.notes["Memory(GiB)"] == "76.1"
    (one,) = imported(tmp_path, "titan.md", TITAN, *settings, number=2).results
    assert figures(one).samples_per_s_global == 3200 * 8 / 32768


def test_tokens_without_a_sequence_length_are_no_samples(tmp_path: Path) -> None:
    settings = ("workload=llama", "backend=fsdp2", "num_processes=8", "batch=2")
    read = imported(tmp_path, "titan.md", TITAN, *settings, number=1)
    assert [figures(result).samples_per_s_global for result in read.results] == [None, None]
    assert "samples/s is n/a in 2 rows: give seq_len, as a column, or as seq_len=... on the command line" in read.told
    row = summarize(read.results).rows[0]
    assert row.measured is None
    assert row.notes["TPS/GPU"] == "5,120"


def test_fms_fsdps_table_with_units_in_its_values(tmp_path: Path) -> None:
    first, second = imported(tmp_path, "README.md", FMS, "workload=llama", "seq_len=4096").results
    assert figures(first).samples_per_s_global == 7168 * 64 / 4096
    assert first.machine.accelerators[:1] == ("A100",)
    assert [result.attempt.cell.backend for result in (first, second)] == ["HSDP", "fsdp"]
    assert [result.attempt.batch_global for result in (first, second)] == [256, 128]
    assert first.attempt.cell.options == {"model_size": "3b", "grad_ckpt": False, "seq_len": 4096}
    assert second.notes["Profile Trace"] == "20b trace"


def test_litgpts_table_with_oom_in_the_place_of_a_figure(tmp_path: Path) -> None:
    read = imported(tmp_path, "resources.md", LITGPT, "backend=ddp")
    first, second, oom, failed = read.results
    assert figures(first).step_time_s_per_rank == (pytest.approx(0.09),)
    assert figures(second).step_time_s_per_rank == (pytest.approx(0.045),)
    assert first.notes["Max GPU RAM"] == "4.50 GB"
    assert (first.attempt.cell.num_processes, oom.attempt.cell.num_processes) == (2, 4)
    assert isinstance(oom.outcome, Oom)
    assert failed.outcome.kind == "failed"
    assert first.attempt.cell.options["quantization"] == "None"
    assert "left out without any figure: 1 row" in read.told


def test_a_trainers_results(tmp_path: Path) -> None:
    settings = ("backend=ddp", "num_processes=4", "workload=gpt2")
    (result,) = imported(tmp_path, "train_results.json", json.dumps(TRAINER), *settings).results
    assert figures(result).samples_per_s_global == 16.6
    assert (result.attempt.batch_per_rank, result.attempt.batch_global) == (8, 32)  # 16.6 / 0.519
    assert result.notes["train_loss"] == 1.25
    coarse = {**TRAINER, "train_samples_per_second": 0.4, "train_steps_per_second": 0.003}  # 133, but for rounding
    with pytest.raises(InputErrors, match="is required"):
        imported(tmp_path, "train_results.json", json.dumps(coarse), *settings)


def test_pefts_results_count_the_time_in_training_alone(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "lora.json", json.dumps(PEFT), "backend=single", "num_processes=1").results
    assert figures(result).samples_per_s_global == 2000 / 80  # and not 2000 / 700: that includes the evaluations
    cell = result.attempt.cell
    assert (cell.workload, cell.mixed_precision, cell.train.learning_rate) == ("example/small", "bf16", 0.0002)
    assert result.attempt.batch_per_rank == 4
    assert "seq_len" not in cell.options  # the longest sample is no sample's length
    assert result.notes["run_info.peft_config.peft_type"] == "LORA"
    assert result.notes["train_info.cuda_memory_max"] == 16_000_000_000
    assert result.machine.accelerators == ("Some GPU",)


SETTINGS = ("num_processes=2", "workload=w")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.tsv", "backend\tbatch\tstep time (ms)\nddp\t4\t1,500\nfsdp\t4\t~812.5 ± 9\n"),
        ("t.csv", 'backend;batch;step time (ms)\nddp;4;1500,0\nfsdp;4;"812,5"\n'),
        ("t.csv", "\ufeffbackend,batch,step_time_s\nddp,4,1.5\nfsdp,4,812.5 ms\n"),
        ("t.html", "<p>x</p><table><tr><th>backend<th>batch<th>step time (ms)</tr><tr><td>ddp<td rowspan=2>4<td>1,500"
                   "</tr><tr><td>fsdp</td><td><b>812.5</b></td></tr></table>"),
        ("t.md", "text\n\nbackend | batch | step time\n:-- | --: | --\nddp | 4 | `1.5 s`\nfsdp | 4 | *812.5 ms*\n"),
        ("t.jsonl", '{"backend": "ddp", "batch": 4, "time": {"step_time_ms": 1500}}\n'
                    '{"backend": "fsdp", "batch": 4, "time": {"step_time_ms": 812.5}}\n'),
        ("t.json", '{"backend": ["ddp", "fsdp"], "batch": [4, 4], "step_time_ms": [1500, 812.5]}'),
        ("t.json", '{"backend": {"0": "ddp", "1": "fsdp"}, "batch": {"0": 4, "1": 4},'
                   ' "step_time_ms": {"0": 1500, "1": 812.5}}'),
        ("t.json", '{"a": {"backend": "ddp", "bs": 4, "s/it": 1.5},'
                   ' "b": {"backend": "fsdp", "bs": 4, "s/it": 0.8125}}'),
    ],
)  # fmt: skip
def test_the_same_table_in_each_format(tmp_path: Path, name: str, text: str) -> None:
    results = imported(tmp_path, name, text, *SETTINGS).results
    assert [result.attempt.cell.backend for result in results] == ["ddp", "fsdp"]
    assert [figures(result).step_time_s_per_rank for result in results] == [(1.5,), (pytest.approx(0.8125),)]
    assert {result.attempt.batch_per_rank for result in results} == {4}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("backend;batch;step_time_ms\nddp;4;812,5\nfsdp;4;5.762\n", "'5.762' is ambiguous"),
        ("backend;batch;step_time_ms\nddp;4;5,762\n", "'5,762' is ambiguous"),
        ("batch;tokens/s;tflops\n4;1.024;3,5\n", "'1.024' is ambiguous"),
        ("backend\tbatch\tstep_time_ms\nddp\t4\t812,5\nfsdp\t4\t812.5\n", "'812,5' is ambiguous"),
    ],
)
def test_a_comma_that_may_be_a_point_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputErrors, match=problem):
        imported(tmp_path, "t.tsv", text, *SETTINGS)


def test_a_header_may_be_a_comment_and_counts_may_be_floats(tmp_path: Path) -> None:
    """As numpy and pandas write them; and a context may have a million tokens."""
    text = "# GPUs,batch,seq len,step time (ms)\n8.0,4,1048576,812\n"
    (result,) = imported(tmp_path, "t.csv", text, "backend=ddp", "workload=w").results
    cell = result.attempt.cell
    assert (cell.num_processes, cell.options["seq_len"], result.attempt.batch_per_rank) == (8, 2**20, 4)


def test_a_table_of_many_steps_is_read_at_once(tmp_path: Path) -> None:
    """As pandas writes a column by default: a key for each row. A search for each key would reach the test's limit."""
    text = json.dumps({f"step {number}": number for number in range(200_000)})
    assert len(parse_json(text, "given")) == 200_000  # type: ignore[arg-type]


def test_a_scatter_is_kept_as_a_note(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "t.csv", "backend,batch,step time (ms)\nddp,4,~812 ± 9\n", *SETTINGS).results
    assert figures(result).step_time_s_per_rank == (pytest.approx(0.812),)
    assert result.notes == {"step time (ms)": "~812 ± 9"}


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "backend,global batch size,micro batch,GPUs,tokens/s,samples/s,seq len\n"
    text += "ddp,64,4,8,8192,8,1024\nddp,100,8,8,8192,8,1024\nddp,64,4,8,8192,80,1024\n"
    with pytest.raises(InputErrors) as error:
        imported(tmp_path, "t.csv", text, "workload=w")
    assert "t.csv:3: global_batch: 100 samples a step are impossible" in str(error.value)
    assert "t.csv:4: samples_per_s: 80.0 is impossible: the tokens/s beside it give 8.00" in str(error.value)
    with pytest.raises(InputErrors) as error:
        imported(tmp_path, "t.csv", "step_time_ms\n5\n6\n")
    said = str(error.value)
    assert said.count("is required (and in 1 more places)") == 4
    assert all(f"{name}: is required" in said for name in ("backend", "workload", "num_processes", "batch"))


def test_accumulation_follows_from_the_global_batch(tmp_path: Path) -> None:
    text = "backend,global_batch,batch,step_time_s\nddp,64,4,2\n"
    (result,) = imported(tmp_path, "t.csv", text, "num_processes=8", "workload=w").results
    assert (result.attempt.cell.train.accumulate, result.attempt.batch_global) == (2, 64)
    measured = summarize([result]).rows[0].measured
    assert measured is not None
    assert measured.samples_per_s_global == 32.0


@pytest.mark.parametrize("column", ["Gradient Acc. Steps", "grad accum.", "gradient_accumulation_steps", "GAS"])
def test_micro_batches_have_many_names(tmp_path: Path, column: str) -> None:
    text = f"backend,batch,{column},step_time_s\nddp,4,4,0.4\n"
    (result,) = imported(tmp_path, "t.csv", text, "num_processes=2", "workload=w").results
    assert (result.attempt.cell.train.accumulate, result.attempt.batch_global) == (4, 32)


def trained(read: Imported) -> list[tuple[int | None, int]]:
    """The global batch and the micro-batches of each row, as settings."""
    trains = [result.attempt.cell.train for result in read.results]
    return [(train.global_batch, train.accumulate) for train in trains]


def test_a_global_batch_that_several_batches_make_is_a_setting(tmp_path: Path) -> None:
    """Rows with it are one task, as measured ones are. Of another one, all rows take one batch."""
    text = "backend,micro batch,grad accum,Global Batch Size,step time (ms)\n"
    text += "ddp,4,4,128,250\nddp,8,2,128,237\nzero2,16,,128,213\nzero2,4,,256,500\nddp,4,8,256,490\n"
    read = imported(tmp_path, "t.csv", text, "num_processes=8", "workload=w")
    assert trained(read) == [(128, 1)] * 3 + [(None, 8)] * 2
    assert [result.attempt.batch_global for result in read.results] == [128] * 3 + [256] * 2
    assert len({result.attempt.cell.id for result in read.results}) == 4
    assert len(advise(summarize(read.results))) == 2


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("w,8,4,,32\nw,8,8,,64\n", [(None, 1), (None, 1)]),
        ("w,8,4,4,128\nw,16,8,1,128\n", [(None, 4), (None, 1)]),
        ("w,8,4,,128\nv,8,8,,128\n", [(None, 4), (None, 2)]),
        ("w,8,4,,128\nw,8,8,,128\nv,8,2,8,128\n", [(128, 1)] * 3),
        ("w,8,4,,128\nw,8,,,128\n", [(None, 4), (None, 1)]),
        ("w,8,4,,128\nw,8,8,,128\nw,8,8,3,\n", [(128, 1), (128, 1), (None, 3)]),
        ("w,8,,4,128\nw,8,,2,128\n", [(128, 1)] * 2),
    ],
    ids=["nothing adds up", "other ranks", "other workloads", "a value of several workloads", "an unsaid batch",
         "a row without one", "batches that follow"],
)  # fmt: skip
def test_elsewhere_the_micro_batches_are_the_setting(
    tmp_path: Path, lines: str, expected: list[tuple[int | None, int]]
) -> None:
    text = "workload,num_processes,batch,accumulate,gbs,step_time_s\n" + lines.replace("\n", ",1\n")
    assert trained(imported(tmp_path, "t.csv", text, "backend=ddp")) == expected


def test_nulls_of_a_program_say_no_global_batch(tmp_path: Path) -> None:
    row = {"backend": "ddp", "step_time_s": 1, "batch": 4}
    rows = [{**row, "global_batch": 16}, {**row, "batch": 8, "global_batch": 16}, {**row, "global_batch": None}]
    assert trained(imported(tmp_path, "t.json", json.dumps(rows), *SETTINGS)) == [(16, 1), (16, 1), (None, 1)]


def test_one_micro_batch_is_said_where_it_follows(tmp_path: Path) -> None:
    text = "backend,batch,global_batch,step_time_s\nddp,4,32,1\nzero2,4,64,2\nfsdp,4,,1\n"
    read = imported(tmp_path, "t.csv", text, "num_processes=8", "workload=w")
    rows = {row.settings["backend"]: row.settings.get("accumulate") for row in summarize(read.results).rows}
    assert rows == {"ddp": 1, "zero2": 2, "fsdp": None}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ddp,8,4,3,128,1,", "global_batch: 128 samples a step are impossible: batch 4 on 8 ranks, 3 micro-batches"),
        ("ddp,8,16,,100,1,", "global_batch: 100 samples a step are impossible: batch 16 on 8 ranks give 128"),
        ("ddp,,4,,128,1,", "num_processes: is required"),
        ("ddp,,,,128,1,", "num_processes: is required"),
        ("ddp,8,4,,many,1,", "global_batch: 'many' cannot be used"),
        ("ddp,8,4,0,128,1,", "accumulate: '0' cannot be used"),
        ("ddp,8,4,4,128,1,64", "samples_per_s: 64.0 samples/s is impossible: batch 4 on 8 ranks, 4 micro-batches"),
        ("ddp,8,16,,128,1,64", "samples_per_s: 64.0 samples/s is impossible: batch 16 on 8 ranks in 1 s"),
    ],
)
def test_a_global_batch_that_cannot_be_gets_one_message(tmp_path: Path, line: str, problem: str) -> None:
    """Beside rows that make it a setting."""
    text = f"backend,GPUs,batch,accumulate,gbs,step_time_s,samples_per_s\nfsdp,8,4,,128,1,\nfsdp,8,8,,128,1,\n{line}\n"
    with pytest.raises(InputErrors) as caught:
        imported(tmp_path, "t.csv", text, "workload=w")
    (error,) = caught.value.errors
    assert f"t.csv:4: {problem}" in str(error)


@pytest.mark.parametrize(
    ("said", "kept"), [("Selective AC", "Selective AC"), ("full", "full"), ("yes", True), ("False", False)]
)
def test_checkpointing_in_the_words_of_the_source(tmp_path: Path, said: str, kept: object) -> None:
    text = f"backend,batch,step_time_s,Activation Checkpointing\nddp,4,1,{said}\n"
    assert imported(tmp_path, "t.csv", text, *SETTINGS).results[0].attempt.cell.options == {"grad_ckpt": kept}


def test_words_that_differ_between_rows_are_settings_and_figures_are_not(tmp_path: Path) -> None:
    text = "backend,batch,step_time_s,variant,LoRA rank,final loss,remark\n"
    text += "ddp,4,1,a,8,1.5,good\nfsdp,4,1,b,8,1.25,bad\nfsdp,4,2,b,16,1.0,bad\n"
    read = imported(tmp_path, "t.csv", text, *SETTINGS)
    assert [result.attempt.cell.options for result in read.results] == [
        {"variant": "a", "lora_rank": 8}, {"variant": "b", "lora_rank": 8}, {"variant": "b", "lora_rank": 16},
    ]  # fmt: skip
    assert read.results[2].notes == {"final loss": "1.0", "remark": "bad"}
    assert read.told == (
        "taken for settings of the workload: variant (workload.variant), LoRA rank (workload.lora_rank)",
    )
    mapped = imported(tmp_path, "t.csv", text, *SETTINGS, maps=("note=variant",))
    assert mapped.results[0].notes["variant"] == "a"


@pytest.mark.parametrize("column", ["TPS", "Throughput", "Step time"])
def test_a_rate_of_unknown_unit_is_not_used(tmp_path: Path, column: str) -> None:
    """TPS may be of one GPU or of all; a step time may be in seconds or milliseconds."""
    read = imported(tmp_path, "t.csv", f"backend,batch,{column},seq_len\nddp,4,9000,512\n", *SETTINGS)
    found = figures(read.results[0])
    assert (found.samples_per_s_global, found.step_time_s_per_rank) == (None, ())
    assert read.results[0].notes == {column: "9000"}
    assert "samples/s is n/a in 1 row: no column gives a rate or a time with its unit" in " ".join(read.told)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("amp_bf16", "bf16"), ("float32", "no"), ("fp8", "fp8"), ("bf16-true", "bf16-true"), ("", None)],
)
def test_precision_is_what_the_source_says(tmp_path: Path, said: str, kept: str | None) -> None:
    (result,) = imported(tmp_path, "t.csv", f"backend,batch,step_time_s,Precision\nddp,4,1,{said}\n", *SETTINGS).results
    assert result.attempt.cell.mixed_precision == kept
    assert summarize([result]).rows[0].settings.get("mixed_precision") == kept


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path) -> None:
    with pytest.raises(InputErrors, match="spreadsheet") as error:
        imported(tmp_path, "t.xlsx", "PK", *SETTINGS)
    assert "save the sheet as csv" in str(error.value)


def test_what_to_run_of_many_imported_tasks_is_short(tmp_path: Path) -> None:
    """Each row is a task of its own; nothing can be compared."""
    lines = [f"fsdp,{2 ** (n % 6)},1,model {n}" for n in range(52)]
    read = imported(tmp_path, "t.csv", "backend,batch,step_time_s,model\n" + "\n".join(lines), "num_processes=2")
    summary = summarize(read.results)
    told = advice_sentences(summary, advise(summary))
    assert len(told) < 15
    assert told[-1] == (
        '47 more tasks of imported figures, 47 with a single setting and nothing to compare: see "All results".'
    )


def test_repeated_rows_are_launches_with_their_scatter(tmp_path: Path) -> None:
    text = "backend,batch,step_time_s\n" + "".join(f"ddp,4,1.0{n}\nfsdp,4,1.5{n}\n" for n in range(4))
    read = imported(tmp_path, "t.csv", text, *SETTINGS)
    assert [result.attempt.launch for result in read.results] == [1, 1, 2, 2, 3, 3, 4, 4]
    summary = summarize(read.results)
    assert [len(row.launches) for row in summary.rows] == [4, 4]
    ddp = summary.rows[0].measured
    assert ddp is not None
    assert ddp.samples_per_s_global == pytest.approx(8 / 1.015)
    assert ddp.interval is not None
    told = " ".join(advice_sentences(summary, advise(summary)))
    assert "`bench run" not in told  # there is no matrix to run
    assert show(read.results[:1], {})
