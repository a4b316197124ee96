"""The effective configuration of a prepared model: of a plain accelerate loop, and of bench under the same file.

Run as a program, with the names of DeepSpeed's extensions to build first: it reads jobs from its input, runs each on
real ranks in forks of this one process, and prints what they found. The loop gets the environment that `accelerate
launch --config_file` computes from the file as it is; bench gets the files that it writes for an attempt.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from accelerate.commands import launch
from accelerate.utils import launch as launches
from torch import Tensor, nn
from torch.utils.data import DataLoader

BATCH, STEPS = 2, 3
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
TOTAL = 10
"""Steps of one of bench's attempts by default, without a GPU."""


# --- the loop -------------------------------------------------------------------------------------------------------


def loop(factory: Any, kind: str) -> dict[str, Any]:
    """Trains as accelerate's documentation does, with what a CPU needs."""
    from accelerate import Accelerator, PartialState
    from accelerate.utils import DistributedType, DummyOptim, DummyScheduler, InitProcessGroupKwargs
    from torch.optim import AdamW
    from torch.optim.lr_scheduler import LambdaLR

    if kind != "DEEPSPEED":
        state = PartialState(cpu=True)
        if kind == "FSDP":
            state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    handlers = [InitProcessGroupKwargs(backend="gloo")] if kind == "DEEPSPEED" else []
    accelerator = Accelerator(cpu=kind == "NO", kwargs_handlers=handlers)
    torch.manual_seed(1000)
    model, dataset, loss = factory()
    loader = DataLoader(dataset, batch_size=BATCH)
    engine = accelerator.state.deepspeed_plugin.deepspeed_config if kind == "DEEPSPEED" else {}
    if kind == "FSDP" and not accelerator.is_fsdp2:
        model = accelerator.prepare(model)
    parameters, settings = list(model.parameters()), {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    optimizer = DummyOptim(parameters, **settings) if "optimizer" in engine else AdamW(parameters, **settings)
    if "scheduler" in engine:
        scheduler = DummyScheduler(optimizer, total_num_steps=accelerator.num_processes * TOTAL)
    elif "optimizer" in engine:
        scheduler = DummyScheduler(optimizer, lr_scheduler_callable=lambda it: LambdaLR(it, lambda _: 1.0))
    else:
        scheduler = LambdaLR(optimizer, lambda _: 1.0)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    losses = []
    seen = hooked(model)
    dtype = next(model.parameters()).dtype if kind == "DEEPSPEED" else torch.float32
    for inputs, targets in batches(accelerator.gradient_accumulation_steps):
        with accelerator.accumulate(model):
            value = loss(model(inputs.to(dtype)).float(), targets)
            accelerator.backward(value)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        losses.append(float(value))
    return {**described(accelerator, model, optimizer), "losses": losses, "computed in": seen}


def batches(accumulate: int) -> list[tuple[Tensor, Tensor]]:
    """Of this rank, for all steps."""
    draw = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
    return [
        (torch.randn(BATCH, 16, generator=draw), torch.randn(BATCH, 16, generator=draw))
        for _ in range(STEPS * accumulate)
    ]


# --- bench ----------------------------------------------------------------------------------------------------------


def benched(spec: str) -> dict[str, Any]:
    from bench.backends import backend_of, extensions
    from bench.runner import regime, steps
    from bench.runner.device import Cpu
    from bench.runner.preload import build_extensions
    from bench.runner.setup import set_up
    from bench.store.spool import Spec

    attempt = Spec.model_validate_json(Path(spec).read_text()).attempt
    if backend_of(attempt.cell).family == "deepspeed":
        build_extensions(extensions(attempt.cell, "cpu"))
    job = set_up(attempt.cell, Cpu(), BATCH)
    seen = hooked(job.model)
    given = iter([list(pair) for pair in batches(job.micro_batches)])
    losses = list[float]()
    for _ in range(STEPS):
        losses += _mine(job, given, steps)
    observed = regime.observe(job)
    regime.check(attempt.cell, "cpu", observed)
    found = described(job.accelerator, job.model, job.optimizer)
    return {**found, "losses": losses, "computed in": seen, "regime": observed.model_dump()}


def _mine(job: Any, given: Any, steps: Any) -> list[float]:
    """This rank's losses of one step, of each micro-batch."""
    kept: list[float] = []
    forward = job.forward

    class Kept:
        def __call__(self, model: Any, batch: Any) -> Any:
            output = forward(model, batch)
            kept.append(float(output["loss"].detach()))
            return output

    object.__setattr__(job, "forward", Kept())
    steps.step(job, given, steps.untimed)
    object.__setattr__(job, "forward", forward)
    return kept


# --- what is compared -----------------------------------------------------------------------------------------------


def hooked(model: nn.Module) -> dict[str, str]:
    """The dtypes in which a linear layer and a norm compute, once they have."""
    seen: dict[str, str] = {}
    for module in model.modules():
        name = type(module).__name__
        if name in ("Linear", "LayerNorm") and name not in seen:
            seen[name] = "never"
            module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, str(out.dtype)))
    return seen


def described(accelerator: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817

    inner, chain = optimizer, []
    while inner is not None:
        chain.append(type(inner).__name__)
        last, inner = inner, getattr(inner, "optimizer", None) or getattr(inner, "inner", None)
    group = {k: v for k, v in last.param_groups[0].items() if isinstance(v, int | float | tuple | list | bool)}
    group = {k: v for k, v in group.items() if k not in ("params", "initial_lr", "foreach", "fused")}
    found: dict[str, Any] = {
        "wrapper": "FSDPModule" if isinstance(model, FSDPModule) else type(model).__name__,
        "type": str(accelerator.distributed_type),
        "world": accelerator.num_processes,
        "accumulation": accelerator.gradient_accumulation_steps,
        "weights": sorted({str(p.dtype) for p in model.parameters()}),
        "buffers": sorted({str(b.dtype) for b in model.buffers()}),
        "local weights": sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.parameters()),
        "optimizer": chain,
        "group": {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(group.items())},
        "stepped": sorted({str(p.dtype) for p in last.state}),
        "state": sorted(
            {str(t.dtype) for s in last.state.values() for t in s.values() if torch.is_tensor(t) and t.dim()}
        ),
    }
    if isinstance(model, FSDP):
        units = FSDP.fsdp_modules(model)
        keys = ("sharding_strategy", "mixed_precision", "cpu_offload", "backward_prefetch", "forward_prefetch")
        found["fsdp"] = {k: str(getattr(model, k)) for k in (*keys, "limit_all_gathers", "_use_orig_params")}
        found["units"] = sorted(type(unit.module).__name__ for unit in units)
    if isinstance(model, FSDPModule):
        states = [(m, m._get_fsdp_state()) for m in model.modules() if isinstance(m, FSDPModule)]
        found["units"] = [
            {
                "of": type(m).__mro__[1].__name__ if type(m).__name__.startswith("FSDP") else type(m).__name__,
                "policy": str(s._mp_policy),
                "mesh": str(s._fsdp_param_group.mesh_info.mesh) if s._fsdp_param_group else None,
                "offload": type(s._fsdp_param_group.offload_policy).__name__ if s._fsdp_param_group else None,
                "reshards": str(s._fsdp_param_group.post_forward_mesh_info is not None)
                if s._fsdp_param_group
                else None,
            }
            for m, s in states
        ]
    if hasattr(model, "zero_optimization_stage"):
        config = model._config
        found["zero"] = json.loads(config.zero_config.model_dump_json())
        found["clipping"] = model.gradient_clipping()
        found["bf16"], found["fp16"] = config.bfloat16_config.enabled, config.float16_config.enabled
        found["communication"] = str(model.communication_data_type)
        found["batch"] = [config.train_micro_batch_size_per_gpu, config.train_batch_size]
        found["zero optimizer"] = type(model.optimizer).__name__
        found["scheduler"] = type(model.lr_scheduler).__name__
        found["learning rate"] = model.get_lr()
    if type(model).__name__ == "DistributedDataParallel":
        found["ddp"] = {
            k: getattr(model, k) for k in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
        }
        found["ddp"]["bucket_cap"] = model.bucket_bytes_cap
    return found


# --- ranks ----------------------------------------------------------------------------------------------------------


def plain_environment(file: str, precision: str | None, ranks: int) -> dict[str, str]:
    """As `accelerate launch --num_processes N [--mixed_precision P] --config_file FILE` sets it for a rank."""
    flags = ["--config_file", file, "--num_processes", str(ranks), "--main_process_port", "0"]
    flags += ["--mixed_precision", precision] if precision else []
    arguments = launch.launch_command_parser().parse_args([*flags, "train.py"])
    arguments, defaults, from_file = launch._validate_launch_command(arguments)
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        return launches.prepare_deepspeed_cmd_env(arguments)[1]
    if arguments.use_fsdp or arguments.multi_gpu:
        return launches.prepare_multi_gpu_env(arguments)
    return launches.prepare_simple_launcher_cmd_env(arguments)[1]


def run(job: dict[str, Any]) -> list[Any]:
    """What each rank found, or the error."""
    port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
    ranks = job["ranks"]
    pipes, children = [], []
    for rank in range(ranks):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _be(job, rank, ranks, port, writer)
        os.close(writer)
        pipes.append(reader)
        children.append(child)
    found = [json.loads(os.fdopen(reader).read() or '{"error": "killed"}') for reader in pipes]
    for child in children:
        os.waitpid(child, 0)
    return found


def _be(job: dict[str, Any], rank: int, ranks: int, port: int, writer: int) -> None:
    import signal

    try:
        signal.alarm(900)  # extensions may have to be compiled
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job["side"] == "loop":
            os.chdir(Path(job["file"]).parent)  # accelerate looks for a DeepSpeed config here
            environment = plain_environment(job["file"], job["precision"], ranks)
        else:
            from bench.runner.server import launch_environment

            environment = launch_environment(Path(job["file"]), port)
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        environment |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "OMP_NUM_THREADS": "1"}
        if ranks == 1:
            environment = {k: v for k, v in environment.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
        os.environ.update(environment)
        if job["side"] == "loop":
            import blocks

            found = loop(getattr(blocks, job["factory"]), job["kind"])
        else:
            found = benched(job["spec"])
    except BaseException as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    os.write(writer, json.dumps(found).encode())
    os._exit(0)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from bench.backends import FAMILIES
    from bench.runner.preload import build_extensions, preload

    os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    preload(module for family in FAMILIES.values() for module in family.preloads)
    build_extensions(["ShareMemCommBuilder", *sys.argv[1:]])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
