"""The names that profilers, published tables and bench itself give to columns and keys, as fields. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.imported.fields import FIELDS
from bench.records.cell import Train
from bench.records.figures import PHASE_MEANS, STATED, TIMED
from bench.units import SCALES

FROM_PROFILERS = {
    "global_step_time_s": "step_time_s",
    "per_rank_step_time_s": "step_time_s_per_rank",
    "peak_alloc_gb_worst": "peak_allocated_gb",
    "peak_reserved_gb_worst": "peak_reserved_gb",
    "batch_per_rank": "batch",
    "world_size": "num_processes",
}
FROM_BENCH = {
    figure.name: f"{figure.short}_s" if figure in PHASE_MEANS else figure.short for figure in (*STATED.values(), *TIMED)
}

SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
BYTES = {"byte": 1.0, "bytes": 1.0, **{unit.lower(): scale for unit, scale in SCALES["bytes"].items()}}
"""Units that a value or a column's name may have, in lower case."""

_THINGS = {
    "tokens": "t tok toks token tokens word words",
    "samples": "s sample samples sequence sequences seq seqs image images img imgs example examples ex",
    "steps": "it its iter iters iteration iterations step steps batches",
}
_OF_EACH = ("gpu", "gpus", "device", "rank", "card", "chip", "accelerator")


def rate_of(unit: str) -> str | None:
    """The field of a rate's unit: ``T/s/GPU`` is tokens_per_s_per_gpu; None for what is no such unit."""
    unit = re.sub(r"\b(t|w)ps\b", "tokens/s", unit.lower().strip())
    thing, *per = [part.strip() for part in re.split(r"/|\bper\b", unit)]
    name = next((name for name, words in _THINGS.items() if thing in words.split()), None)
    seconds = [part for part in per if SECONDS.get(part) == 1.0]
    each = [part for part in per if part in _OF_EACH]
    if name is None or len(seconds) != 1 or len(per) != 1 + len(each) or len(each) > 1:
        return None
    if name == "steps":
        return None if each else "steps_per_s"
    return f"{name}_per_s_per_gpu" if each else f"{name}_per_s"


class Meaning(NamedTuple):
    """What a column holds."""

    field: str
    scale: float | None = None
    """Base units of a number without a unit; None: such a number cannot be used."""
    units: Mapping[str, float] | None = None
    """Units that a value may name."""


RATE = "rate"
"""The field of a column *Throughput* or *TPS*: the values must name their unit."""
GPUS = "gpus"
"""The field of a column *GPU*: a number of them, their name, or both as ``2 x A100``."""

_PATTERNS = {
    r"((local|micro|mini|train micro) ?)?batch( ?size)?(/(gpu|device|rank))?|bs|mbs"
    r"|per (device|gpu) (train )?batch size": "batch",
    r"global (train )?batch( size)?|(total|effective)( train)? batch( size)?|gbs|batch global": "global_batch",
    r"grad(ient)?s? acc(um(ulation)?)?( steps)?|accum(ulation)?( steps)?|gas": "accumulate",
    r"seq(uence)? ?len(gth)?|context( len(gth)?)?|ctx( len)?|block size|tokens/sample": "seq_len",
    r"(#|num(ber of)?|n|no of) ?(gpus?|devices|processes|ranks)|gpus|ranks|gpu count|world size": GPUS,
    r"gpus?|hardware|gpu (type|name|model)|accelerators?|gpu device": GPUS,
    r"model( name| id)?": "workload",
    r"(shard(ing)? |distributed |parallel )?(strategy|backend)|distributed type": "backend",
    r"(mixed )?precision|(torch )?dtype|data type": "mixed_precision",
    r"(act(ivation)?s?|grad(ient)?) (ckpt|checkpoint(ing)?)|checkpointing|ac( mode)?": "grad_ckpt",
    r"lr|learning rate": "learning_rate",
}
_MEMORY = (
    r"(?:(?:max(?:imum)?|peak|cuda|gpu|vram|device|accelerator|total) )*"
    r"(?:mem(?:ory)?|ram|vram)(?: (allocated|reserved|alloc))?(?: (?:usage|used|peak|max))*(?:/(?:gpu|device|rank))?"
)
_STEP = r"(mean |avg |average )?(step|iter|iteration) (time|latency|duration)|time/(step|iter|iteration)"
_SEVERAL = r"(?:time )?(?:for |of |/)?(\d+) ?(k)? (?:iter(?:ation)?s?|steps?)"
_FIGURE = (
    r"\b(mfu|hfu|[tgp]?flops?|accuracy|loss|perplexity|ppl|epochs?|runtime|time|speed ?up|scaling|throughput|tokens|tps"
    r"|seconds?|latency|memory|mem|params|parameters|eval|samples|utili[sz]ation|cost|power|energy|flos"
    r"|trace|link|url|logs?|comments?|notes?|remarks?|commit|date)\b"
)


def plain(column: str) -> str:
    """A column's name in lower case, with one blank between its words: ``GlobalBatchSize`` as ``global batch size``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", column)
    words = re.sub(r"(?<=[A-Za-z])\.(?=[_\-\s]|$)", " ", words)  # of abbreviations
    words = re.sub(r"\s*/\s*|\bper\b(?! (device|gpu) )", "/", re.sub(r"[_\-\s]+", " ", words).lower())
    return re.sub(r"\s*/\s*", "/", " ".join(words.split()))


def meaning(column: str) -> Meaning | None:
    """The field that a column of a published table holds; None for a name that bench does not know."""
    name = re.sub(r"^(train(ing)?|run) (?!micro|batch)", "", plain(column))
    units = [unit.strip() for unit in re.findall(r"[(\[]([^)\]]*)[)\]]", name)]
    name = " ".join(re.sub(r"[(\[][^)\]]*[)\]]", " ", name).split())
    if not units and (match := re.fullmatch(r"(.*\S)[ ,](\w+)", name)) and match[2] in {**SECONDS, **BYTES}:
        name, units = match[1], [match[2]]
    rate = next((rate for unit in (*units, name) if (rate := rate_of(unit))), None)
    if rate or re.fullmatch(r"throughput|speed", name):
        of_whom = not units and re.fullmatch(r"[tw]ps", name)  # torchtitan logs those of one GPU
        return Meaning(RATE if rate is None or of_whom else rate)
    if found := _time(name, units) or _memory(name, units):
        return found
    field = next((field for pattern, field in _PATTERNS.items() if re.fullmatch(pattern, name)), None)
    in_tokens = field == "global_batch" and any(unit in _THINGS["tokens"].split() for unit in units)
    return None if field is None or in_tokens else Meaning(field)


def _time(name: str, units: Sequence[str]) -> Meaning | None:
    """``step time (ms)``, ``s/it``, ``time 1k iterations``."""
    number, _, each = name.partition("/")
    if number in SECONDS and re.fullmatch(r"it|iter|iteration|step", each):
        return Meaning("step_time_s", SECONDS[number], SECONDS)
    if re.fullmatch(_STEP, name):
        return Meaning("step_time_s", _first(units, SECONDS), SECONDS)
    match = re.fullmatch(_SEVERAL, name)
    if match is None or int(match[1]) == 0:
        return None
    of_one = {unit: scale / int(match[1]) / (1000 if match[2] else 1) for unit, scale in SECONDS.items()}
    return Meaning("step_time_s", _first(units, of_one), of_one)


def _memory(name: str, units: Sequence[str]) -> Meaning | None:
    match = re.fullmatch(_MEMORY, name)
    if match is None:
        return None
    kind = {"allocated": "peak_allocated", "alloc": "peak_allocated", "reserved": "peak_reserved"}.get(match[1], "peak")
    return Meaning(f"{kind}_bytes", _first(units, BYTES), BYTES)


def _first(units: Sequence[str], scales: Mapping[str, float]) -> float | None:
    return next((scales[unit] for unit in units if unit in scales), None)


def is_figure(column: str) -> bool:
    """Whether an unknown column holds a result or a remark, and no setting."""
    return re.search(_FIGURE, plain(column)) is not None


def is_own(columns: Sequence[str]) -> bool:
    """Whether `bench report` wrote a table with these columns."""
    return {"cell", "batch_global"} <= set(columns)


def fields_of(columns: Sequence[str]) -> dict[str, str | None]:
    """The field of each column that has a name of bench or of a profiler, or the name itself. None: bench wrote it, and
    an import has no place for it.

    In bench's own tables, the settings stand before the batch; one that is no field of a matrix is the workload's.
    """
    settings = columns[: columns.index("batch_global")] if is_own(columns) else ()

    def field(column: str) -> str | None:
        name = {**FROM_PROFILERS, **FROM_BENCH}.get(column, column)
        if name in FIELDS or not settings:
            return name
        return f"workload.{name}" if column in settings and column != "cell" else None

    return {column: field(column) for column in columns}


BACKENDS = {
    r"fsdp|full[ _]shard": "fsdp",
    r"fsdp2|fully_shard": "fsdp2",
    r"shard[ _]grad[ _]op": "fsdp_grad_op",
    r"ddp|no[ _]shard|distributed ?data ?parallel|multi_gpu": "ddp",
    r"(deepspeed )?zero[- _]?(stage[ -_]?)?([123])": r"zero\3",
    r"none|single|single gpu": "single",
}


def backend_of(said: str) -> str:
    """bench's name of a strategy where it has one; else the source's words, as a folder can have them."""
    for pattern, name in BACKENDS.items():
        if match := re.fullmatch(pattern, said.strip().lower()):
            return match.expand(name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", said).strip("-._")


def setting_of(column: str) -> str:
    """A field of the workload for an unknown column: ``LoRA rank`` as ``lora_rank``."""
    name = re.sub(r"\W+", "_", column.rpartition(".")[2].lower(), flags=re.ASCII).strip("_") or "setting"
    taken = name in FIELDS or name in Train.model_fields or name[0].isdigit()
    return f"workload.{'their_' if taken else ''}{name}"
