"""What is told of a user's accelerate config before a launch, and that following an advice is accepted."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_matrices import CPU, GPUS

from bench import backends
from bench.errors import InputError
from bench.matrix import Matrix, expand
from bench.records.cell import Cell
from bench.records.machine import Hardware

Load = Callable[..., Matrix]
ROWS = "matrix: {backend: {name: mine, config_file: own.yaml}, batch: 1}\n"
FSDP2 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
ZERO2 = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}
JSON = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}
BATCH = {"train_micro_batch_size_per_gpu": "auto"}
STAGE = {"zero_optimization": {"stage": 2}, **BATCH}


@pytest.fixture
def own(tmp_path: Path, load_text: Load) -> Callable[..., Matrix]:
    def own(
        config: dict[str, Any], engine: dict[str, Any] | None = None, text: str = ROWS, hardware: Hardware = CPU
    ) -> Matrix:
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (tmp_path / "ds.json").write_text(json.dumps(engine, indent=1))
        return load_text(text, hardware)

    return own


def cell_of(matrix: Matrix, hardware: Hardware = CPU) -> Cell:
    (plan,) = expand(matrix, hardware)
    return plan.cell


def fsdp(**section: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "fsdp_config": {"fsdp_auto_wrap_policy": "NO_WRAP", **section}}


@pytest.mark.parametrize(
    ("config", "line", "says"),
    [
        (fsdp(fsdp_version=2, fsdp_sharding_strategy="HYBRID_SHARD"), 5, "with fsdp_version 2: fsdp_reshard_after"),
        (fsdp(fsdp_version=2, fsdp_limit_all_gathers=True), 5, "with fsdp_version 2: version 2 always limits"),
        (fsdp(fsdp_version=2, fsdp_use_orig_params=False), 5, "always has the original parameters"),
        (fsdp(fsdp_version=2, fsdp_backward_prefetch="BACKWARD_PRE"), 5, "always prefetches in backward"),
        (fsdp(fsdp_reshard_after_forward="SHARD_GRAD_OP"), 4, "with fsdp_version 1: set fsdp_sharding_strategy"),
        (fsdp(fsdp_backward_prefetch_policy="BACKWARD_PRE"), 4, "set fsdp_backward_prefetch"),
        (fsdp(fsdp_transformer_layer_cls_to_wrap="X"), 4, "TRANSFORMER_BASED_WRAP reads it, and the policy is NO_WRAP"),
        ({**ZERO2, "fsdp_config": {"fsdp_version": 2}}, 4, "ignores fsdp_config: distributed_type is DEEPSPEED"),
        ({"distributed_type": "NO", "parallelism_config": {"parallelism_config_tp_size": 1}}, 2, "one process"),
        ({"distributed_type": "MULTI_GPU", "downcast_bf16": True}, 2, "ignores downcast_bf16: it is for TPUs"),
    ],
)
def test_what_accelerate_ignores_is_told_with_its_line(own: Load, config: dict[str, Any], line: int, says: str) -> None:
    (note,) = [note for note in own(config).notes if "accelerate ignores" in note]
    assert f"own.yaml:{line}: accelerate ignores" in note
    assert says in note


@pytest.mark.parametrize("field", [{"bf16": {"enabled": True}}, {"zero_optimization": {"stage": 2}}])
def test_deepspeeds_own_fields_belong_into_its_own_file(own: Load, field: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="accelerate would ignore it") as error:
        own({"distributed_type": "DEEPSPEED", "deepspeed_config": field})
    assert "write that to a file, and name it as deepspeed_config_file" in (error.value.fix or "")


@pytest.mark.parametrize(
    ("config", "engine", "field", "says"),
    [
        (fsdp(fsdp_offload_params="maybe"), None, "fsdp_config.fsdp_offload_params", "neither true nor false"),
        (JSON, {**STAGE, "optimizer": {"type": "AdamWW"}}, "optimizer.type", "'AdamWW' is no optimizer"),
    ],
)
def test_what_would_fail_once_ranks_have_started_is_refused_with_its_line(
    own: Load, config: dict[str, Any], engine: dict[str, Any] | None, field: str, says: str
) -> None:
    with pytest.raises(InputError, match=says) as error:
        own(config, engine)
    assert error.value.field == field
    assert re.search(r"(own.yaml|ds.json):\d+$", error.value.where or "")


@pytest.mark.parametrize("kind", ["adamw", "AdamW", "Lion", "SGD", "Muon"])
def test_optimizers_of_deepspeed_and_torch_are_taken(own: Load, kind: str) -> None:
    own(JSON, {**STAGE, "optimizer": {"type": kind, "params": {"lr": 0.1}}})


def test_a_field_that_a_json_gives_twice_is_refused(tmp_path: Path, load_text: Load) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(JSON))
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2},\n "zero_optimization": {"stage": 3}}')
    with pytest.raises(InputError, match="'zero_optimization' is given twice"):
        load_text(ROWS, CPU)


def test_keys_of_fsdp_need_no_prefix(own: Load) -> None:
    cell = cell_of(own({"distributed_type": "FSDP", "fsdp_config": {"version": 2, "reshard_after_forward": False}}))
    assert backends.backend_of(cell).family == "fsdp2"
    assert cell.train.reshard_after_forward is False


def test_what_a_questionnaire_writes_by_default_is_not_told(own: Load) -> None:
    beside = {"downcast_bf16": "no", "tpu_env": [], "tpu_use_sudo": False, "fsdp_config": {}, "megatron_lm_config": {}}
    assert not any("ignores" in note for note in own({"distributed_type": "MULTI_GPU", **beside}).notes)


def test_the_config_decides_what_it_sets_and_tables_show_it(own: Load) -> None:
    block = {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": "auto"}}
    engine = {**STAGE, "gradient_clipping": 0.01, "optimizer": block}
    engine["zero_optimization"] = {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}}
    matrix = own(JSON, engine, ROWS + "train: {max_grad_norm: 1.0, learning_rate: 0.1, weight_decay: 0.5}\n")
    train = cell_of(matrix).train
    assert (train.max_grad_norm, train.learning_rate, train.weight_decay) == (0.01, 3e-4, 0.5)
    assert (train.optimizer, train.offload, train.zero_overlap_comm) == ("deepspeed:Adam", "optimizer", True)
    told = [note for note in matrix.notes if "its own config sets" in note]
    assert told == [
        "mine: its own config sets max_grad_norm 0.01, and not train.max_grad_norm 1.0",
        "mine: its own config sets learning_rate 0.0003, and not train.learning_rate 0.1",
    ]


@pytest.mark.parametrize(
    ("config", "engine", "clipping"),
    [
        (ZERO2, None, 0.7),  # accelerate then takes auto
        ({**ZERO2, "deepspeed_config": {"gradient_clipping": 0.01}}, None, 0.01),
        ({**ZERO2, "deepspeed_config": {"gradient_clipping": "0.01"}}, None, 0.01),
        ({**ZERO2, "deepspeed_config": {"gradient_clipping": 0}}, None, None),
        (JSON, {**STAGE, "gradient_clipping": "auto"}, 0.7),
        (JSON, STAGE, None),
        (FSDP2, None, 0.7),
    ],
)
def test_clipping_is_the_configs_or_the_matrixs(
    own: Load, config: dict[str, Any], engine: dict[str, Any] | None, clipping: float | None
) -> None:
    assert cell_of(own(config, engine, ROWS + "train: {max_grad_norm: 0.7}\n")).train.max_grad_norm == clipping


@pytest.mark.parametrize("precision", ["no", "fp16", "bf16"])
def test_precision_of_a_config(own: Load, precision: str) -> None:
    """Also without the file's own batch sizes, which bench sets."""
    assert cell_of(own({**ZERO2, "mixed_precision": precision})).mixed_precision == precision
    assert cell_of(own(JSON, {"zero_optimization": {"stage": 2}})).mixed_precision == "no"


@pytest.mark.parametrize(
    ("engine", "requested", "precision"),
    [
        ({"bf16": {"enabled": "auto"}}, "bf16", "bf16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, "bf16", "bf16"),
        ({"bf16": {"enabled": "auto"}}, None, "no"),
        ({"bf16": {"enabled": True}}, None, "bf16"),
        ({"bf16": {"enabled": True}}, "no", "bf16"),
        ({"bf16": {"enabled": False}}, "bf16", "no"),
        ({}, "bf16", "bf16"),
        ({}, None, "no"),
    ],
)
def test_precision_of_a_deepspeed_json(
    own: Load, engine: dict[str, Any], requested: str | None, precision: str
) -> None:
    launch = f"launch: {{mixed_precision: '{requested}'}}\n" if requested else ""
    assert cell_of(own(JSON, {**STAGE, **engine}, ROWS + launch)).mixed_precision == precision


@pytest.mark.parametrize(
    ("axis", "values", "config", "engine"),
    [
        ("max_grad_norm", [0.01, 1.0], JSON, {**STAGE, "gradient_clipping": 0.01}),
        ("learning_rate", [0.001, 0.1], JSON, {**STAGE, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}),
        ("optimizer", ["deepspeed:AdamW", "muon"], JSON, {**STAGE, "optimizer": {"type": "AdamW", "params": {}}}),
        ("offload", ["none", "optimizer"], ZERO2, None),
        ("reshard_after_forward", [None, False], FSDP2, None),
        ("dp_replicate_size", [1, 2], FSDP2, None),
    ],
)
def test_cells_of_an_axis_that_the_config_overrides_would_do_the_same(
    own: Load, axis: str, values: list[Any], config: dict[str, Any], engine: dict[str, Any] | None
) -> None:
    text = ROWS.replace("batch", f"{axis}: {json.dumps(values)}, batch")
    kept, refused = [backends.forbids(plan.cell, "cpu") for plan in expand(own(config, engine, text), CPU)]
    assert kept is None
    assert f"train.{axis}: {str(values[1]).lower()} does not change mine, which has" in (refused or "")


ADVICE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # the setting, a config that refuses it, and the config as the refusal advises
    (
        "dp_replicate_size: 2",
        FSDP2,
        {
            **FSDP2,
            "parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2},
        },
    ),
    (
        "reshard_after_forward: false",
        FSDP2,
        {**FSDP2, "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
    ),
    ("offload: params", FSDP2, {**FSDP2, "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True}}),
    ("offload: params", fsdp(), fsdp(fsdp_offload_params=True)),
    (
        "offload: optimizer",
        ZERO2,
        {**ZERO2, "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"}},
    ),
    ("max_grad_norm: 0.5", {**ZERO2, "deepspeed_config": {"gradient_clipping": 0.1}}, ZERO2),
]


@pytest.mark.parametrize(("setting", "refused", "advised"), ADVICE)
def test_an_option_is_set_where_the_refusal_says(
    own: Load, setting: str, refused: dict[str, Any], advised: dict[str, Any]
) -> None:
    text = ROWS.replace("batch", setting + ", batch")
    reason = backends.forbids(cell_of(own(refused, text=text, hardware=GPUS), GPUS), "cuda")
    assert reason is not None
    assert "its own config decides it, by" in reason
    assert any(key in reason for key in [*advised.get("parallelism_config", {}), *_keys(advised), "gradient_clipping"])
    assert backends.forbids(cell_of(own(advised, text=text, hardware=GPUS), GPUS), "cuda") is None


def _keys(config: dict[str, Any]) -> set[str]:
    return {key for section in config.values() if isinstance(section, dict) for key in section}


FIXES: list[tuple[dict[str, Any], dict[str, Any] | None, str, dict[str, Any], dict[str, Any] | None, str]] = [
    # config, JSON, part of the refusal's fix; config, JSON and text of the matrix as it advises
    ({"distributed_type": "MULTI_CPU"}, None, "use MULTI_GPU", {"distributed_type": "MULTI_GPU"}, None, ""),
    (
        {"distributed_type": "MULTI_GPU", "dynamo_backend": "EAGER"},
        None,
        "set train.compile: unit",
        {"distributed_type": "MULTI_GPU"},
        None,
        "train: {compile: unit}\n",
    ),
    ({**FSDP2, "parallelism_config": {"parallelism_config_tp_size": 2}}, None, "leave it out", FSDP2, None, ""),
    (
        {**JSON, "mixed_precision": "bf16"},
        STAGE,
        "set launch.mixed_precision in the matrix",
        JSON,
        STAGE,
        "launch: {mixed_precision: bf16}\n",
    ),
    (
        JSON,
        {**STAGE, "torch_autocast": {"enabled": True}},
        "launch.mixed_precision: bf16 in the matrix",
        JSON,
        STAGE,
        "launch: {mixed_precision: bf16}\n",
    ),
    (
        {**JSON, "deepspeed_config": {"deepspeed_config_file": "ds.json", "zero_stage": 2}},
        STAGE,
        "set it in the JSON file",
        JSON,
        STAGE,
        "",
    ),
    (JSON, BATCH, 'add "zero_optimization": {"stage": 2}', JSON, STAGE, ""),
    (
        {**ZERO2, "deepspeed_config": {"offload_optimizer_device": "nvme"}},
        None,
        "to the host's memory",
        {**ZERO2, "deepspeed_config": {"offload_optimizer_device": "cpu"}},
        None,
        "",
    ),
]


@pytest.mark.parametrize(("config", "engine", "fix", "advised", "advised_engine", "text"), FIXES)
def test_a_file_is_accepted_once_it_is_fixed_as_advised(
    own: Load,
    config: dict[str, Any],
    engine: dict[str, Any] | None,
    fix: str,
    advised: dict[str, Any],
    advised_engine: dict[str, Any] | None,
    text: str,
) -> None:
    with pytest.raises(InputError) as refused:
        own(config, engine)
    assert fix in str(refused.value)
    assert backends.forbids(cell_of(own(advised, advised_engine, ROWS + text)), "cpu") is None


@pytest.mark.parametrize(
    ("backend", "given", "says", "fixed"),
    [
        ("fsdp2", "offload: optimizer", "use params", ("fsdp2", "offload: params")),
        ("zero2", "offload: params", "under ZeRO-3 only", ("zero3", "offload: params")),
        ("fsdp", "optimizer: muon", "use single, ddp or fsdp2", ("fsdp2", "optimizer: muon")),
        ("fsdp2", "compile: model", "use compile: unit", ("fsdp2", "compile: unit")),
        ("fsdp2", "reshard_after_forward: 2", "`true` means all", ("fsdp2", "reshard_after_forward: true")),
        ("fsdp", "reshard_after_forward: false", "fsdp_grad_op is the backend", ("fsdp_grad_op", "fused: false")),
        ("ddp", "dp_replicate_size: 2", "only FSDP2 gets a mesh", ("fsdp2", "dp_replicate_size: 2")),
    ],
)
@pytest.mark.parametrize("hardware", [CPU, GPUS])
def test_what_a_refusal_of_a_built_in_backend_advises_is_accepted(
    load_text: Load, hardware: Hardware, backend: str, given: str, says: str, fixed: tuple[str, str]
) -> None:
    def reason(name: str, setting: str) -> str | None:
        text = f"matrix: {{backend: {name}, {setting}, batch: 1}}\nlaunch: {{num_processes: 2}}\n"
        return backends.forbids(cell_of(load_text(text, hardware), hardware), hardware.device)

    assert says in (reason(backend, given) or "")
    assert reason(*fixed) is None


def test_auto_precision_that_nothing_states_is_told(own: Load) -> None:
    engine = {**STAGE, "bf16": {"enabled": "auto"}}
    words = "nothing states a precision, so it runs in fp32"
    assert words in " ".join(own(JSON, engine, ROWS).notes)
    assert words not in " ".join(own(JSON, engine, ROWS + "launch: {mixed_precision: bf16}\n").notes)


def test_older_keys_of_offload_are_offload(own: Load) -> None:
    engine = {**STAGE, "zero_optimization": {"stage": 3, "cpu_offload_param": True}}
    assert cell_of(own(JSON, engine, ROWS)).train.offload == "params"


@pytest.mark.parametrize("engine", [None, {**STAGE, "gradient_accumulation_steps": 4}])
def test_its_accumulation_is_that_of_the_cell(own: Callable[..., Matrix], engine: dict[str, Any] | None) -> None:
    config = JSON if engine else {**ZERO2, "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4}}
    matrix = own(config, engine)
    assert (cell_of(matrix).train.accumulate, cell_of(matrix).samples_per_step(1)) == (4, 8)
    assert not [note for note in matrix.notes if "accum" in note]
    stated = own(config, engine, ROWS + "train: {accumulate: 2}\n")
    assert cell_of(stated).train.accumulate == 4
    assert "mine: its own config sets gradient_accumulation_steps 4, and not train.accumulate 2" in stated.notes
    assert cell_of(own(config, engine, ROWS.replace("}, batch", "}, accumulate: 4, batch"))).id == cell_of(matrix).id
    for wrong, field in (
        (ROWS.replace("}, batch", "}, accumulate: 2, batch"), "matrix.accumulate"),
        (ROWS.replace("}, batch", "}, global_batch: 16, batch"), "matrix.global_batch"),
        (ROWS + "train: {global_batch: 16}\n", "train.global_batch"),
        (ROWS + "train: {global_batch: 4}\n", "train.global_batch"),
    ):
        with pytest.raises(InputError, match=f"{field}.*its own config accumulates 4 micro-batches"):
            expand(own(config, engine, wrong), CPU)


@pytest.mark.parametrize("written", [1, "auto", None])
def test_what_it_leaves_open_is_the_matrix_s(own: Callable[..., Matrix], written: int | str | None) -> None:
    stated = {} if written is None else {"gradient_accumulation_steps": written}
    matrix = own(JSON, {**STAGE, **stated}, ROWS + "train: {accumulate: 2}\n")
    assert cell_of(matrix).train.accumulate == 2
    assert not [note for note in matrix.notes if "accum" in note]
