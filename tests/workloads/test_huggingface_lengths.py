"""Models of transformers with samples of many lengths: what is drawn, padded, packed, and counted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from families import workload
from pydantic import ValidationError
from typer.testing import CliRunner

from bench import workloads
from bench.cli.app import app
from bench.errors import InputError
from bench.runner.seen import places_in, tokens_in
from bench.workloads.huggingface import flops

UNIFORM = {"uniform": [3, 9]}


def made(model_type: str, **options: Any) -> Any:
    fields = workload(model_type, **options)
    definition = workloads.load(fields.pop("name"))
    return definition.create(definition.Config.model_validate({**fields.pop("config"), **fields}))


def lengths(samples: Any, count: int = 40) -> list[int]:
    return [len(samples[index]["input_ids"]) for index in range(count)]


def test_lengths_are_drawn_by_seed_and_index() -> None:
    task = made("llama", seq_len=UNIFORM)
    drawn = lengths(task.dataset(seed=1))
    assert set(drawn) == set(range(3, 10))
    assert drawn == lengths(made("llama", seq_len=UNIFORM, packed=True).dataset(seed=1))
    assert drawn != lengths(task.dataset(seed=2))
    assert [len(one["input_ids"]) for one in task.worst_batch(task.dataset(seed=1), 2)] == [9, 9]


def test_lengths_of_a_file_are_those_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lengths.txt").write_text("4\n9\n2\n5\n")
    task = made("llama", seq_len={"file": "lengths.txt"})
    samples = task.dataset(seed=1)
    assert (len(samples), lengths(samples, 4)) == (4, [4, 9, 2, 5])
    assert [len(one["input_ids"]) for one in task.worst_batch(samples, 5)] == [9, 5, 4, 2, 9]
    (tmp_path / "wrong.txt").write_text("4\n1\n")
    for file, words in (("wrong.txt", "wrong.txt:2: '1' is no length"), ("absent.txt", "cannot read absent.txt")):
        with pytest.raises(ValidationError, match=words):
            made("llama", seq_len={"file": file})
    with pytest.raises(ValidationError, match="has changed since its matrix was read"):
        made("llama", seq_len={"file": "lengths.txt", "sha256": "of another"})


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert"])
def test_padded_and_packed_batches_train_the_tokens_of_their_samples(model_type: str) -> None:
    """The loss of a batch is the mean over its labels, as if each sample were alone in it."""
    task = made(model_type, seq_len=UNIFORM)
    torch.manual_seed(0)
    model, samples = task.build(), [task.dataset(seed=1)[index] for index in range(4)]
    alone = [model(**task.collate([one])).loss for one in samples]
    shift = 0 if model_type == "bert" else 1
    labels = [int((one["labels"][shift:] != -100).sum()) for one in samples]
    expected = sum(loss * count for loss, count in zip(alone, labels, strict=True)) / sum(labels)
    batch = task.collate(samples)
    held, count = [len(one["input_ids"]) for one in samples], tokens_in(batch)
    assert count.tolist() == held
    assert places_in(batch) == 4 * max(held)
    torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-5, atol=1e-6)
    if model_type != "bert":
        packed = made(model_type, seq_len=UNIFORM, packed=True).collate(samples)
        count = tokens_in(packed)
        assert (count.tolist(), places_in(packed)) == (held, sum(held))
        del packed["num_tokens"]
        torch.testing.assert_close(model(**packed).loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_flops_of_each_length_are_those_of_samples_of_that_length(model_type: str) -> None:
    task = made(model_type, seq_len={"uniform": [4, 40]}, grad_ckpt=True)
    for tokens in (4, 7, 23, 40):
        alone, found = (
            made(model_type, seq_len=tokens, grad_ckpt=True).flops_per_sample(),
            task.flops_per_sample(tokens),
        )
        assert (found.step, found.recomputed) == (alone.step, alone.recomputed)


def test_flops_are_unknown_where_torch_cannot_count_those_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "flops_per_sample", lambda *_: None)
    assert made("llama", seq_len={"uniform": [4, 40]}).flops_per_sample(7) is None


@pytest.mark.parametrize("lengths", ["{}", "{file: 1, uniform: 2}", "{shortest: 1}"])
def test_a_distribution_without_its_field_is_one_message(lengths: str, tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(f"workload: {{name: 'hf:gpt2', seq_len: {lengths}}}\nmatrix: {{backend: ddp, batch: 1}}\n")
    told = CliRunner().invoke(app, ["run", str(matrix), "--dry-run"])
    assert told.exit_code == 2
    assert "matrix.yaml:1: workload.seq_len" in told.output


@pytest.mark.parametrize(
    ("model_type", "options", "words"),
    [
        ("t5", {"seq_len": UNIFORM}, "seq_len must be one integer for Seq2SeqLM"),
        ("bert", {"seq_len": UNIFORM, "packed": True}, "packed: true needs a CausalLM"),
        ("llama", {"seq_len": 16, "packed": True}, "packed: true needs samples of many lengths"),
        ("llama", {"seq_len": {"uniform": [9, 3]}}, "the shortest length comes first"),
        ("llama", {"seq_len": {"uniform": [3, 9]}, "max_position_embeddings": 8}, "seq_len=9 is more than"),
    ],
)
def test_what_cannot_have_many_lengths_is_refused(model_type: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        made(model_type, **options)


@pytest.mark.parametrize("model_type", ["mamba", "jamba", "rwkv"])
def test_layers_with_a_state_are_not_packed(model_type: str) -> None:
    config = workloads.load(f"hf:{model_type}").Config
    with pytest.raises(ValidationError, match="packed: true needs a CausalLM whose layers all read position_ids"):
        config.model_validate({"seq_len": UNIFORM, "packed": True})


def test_samples_with_more_than_text_are_refused() -> None:
    definition = workloads.load("hf:layoutlm")
    task = definition.create(definition.Config.model_validate({"seq_len": UNIFORM, "task": "MaskedLM"}))
    with pytest.raises(InputError, match="cannot have many lengths: its samples hold bbox, too"):
        task.dataset(seed=1)
