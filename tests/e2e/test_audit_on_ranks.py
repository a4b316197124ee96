"""The verdicts of audits on real ranks."""

import re

import pytest
from harness import Bench
from kept import KeptBench
from policy import OPTIONAL_PARTS

from bench.audit.params import Looked, group
from bench.records.outcome import Failed
from bench.store.spool import read_audits

BENCH = KeptBench


def said(output: str) -> dict[str, str]:
    """The verdict on each cell, by its label."""
    lines = re.findall(r"^\*\*(.+?): (.+)\*\*$", output.replace("\\_", "_"), re.MULTILINE)
    assert len(dict(lines)) == len(lines)
    return dict(lines)


@pytest.mark.parametrize(
    "backends", [["ddp", "fsdp"], pytest.param(["ddp", "fsdp", "fsdp2", "zero3"], marks=pytest.mark.long)]
)
def test_collectives_part_where_each_rank_decides_for_itself(bench: Bench, backends: list[str]) -> None:
    matrix = bench.matrix(
        workload=OPTIONAL_PARTS,
        matrix={"backend": [*backends, "zero2"], "branch_sync": "none", "batch": 1},
    )
    cells = ("--axis", "branch_sync=none,agree,hoist", "--select", f"backend={','.join(backends)}")
    audit = ("audit", "collectives", matrix, "--steps", "5", "--out", str(bench.folder / "run"))
    found = said(bench(*audit, *cells, expect=1))
    assert len(found) == 3 * len(backends)
    for label, says in found.items():
        backend, _, sync = label.partition(" branch_sync=")
        if sync == "none" and backend != "ddp":
            assert says.startswith("DIFFERENT"), label
            for rank in (0, 1):  # each asks in the model for another thing
                assert re.search(rf"rank {rank} issued [^;]+ in \w+ \(model/\w+\.py:\d+\)", says), label
        else:  # under ddp no forward issues a collective of its own, so there is nothing to part at
            assert says.startswith("SAME, all 2 ranks"), label
    bench.assert_gone()


@pytest.mark.parametrize(
    ("backends", "turned"),
    [
        (["fsdp2", "zero3"], ["ddp", "zero2"]),
        pytest.param(["ddp", "fsdp2", "zero2", "zero3"], ["ddp", "fsdp2", "zero1", "zero2"], marks=pytest.mark.long),
    ],
)
def test_equal_collectives_for_different_experts_are_found_by_their_names(
    bench: Bench, backends: list[str], turned: list[str]
) -> None:
    """The batches and steps are the matrix's. DDP, and FSDP1 in its units, reduce all experts, whichever were used."""
    matrix = bench.matrix(
        workload={"name": "routed:Routed"},
        matrix={"backend": backends, "route": ["together", "apart"], "batch": 1},
        include=[{"backend": backend, "route": "turned", "batch": 2} for backend in turned],
        measure={"steps": 2},
        train={"find_unused_parameters": True},
    )
    found = said(bench("audit", "collectives", matrix, "--out", str(bench.folder / "run"), expect=1))
    assert len(found) == 2 * len(backends) + len(turned)
    expected = {
        "fsdp2": "gathers layer.experts.{} for its forward",
        "zero2": "reduces the gradient of layer.experts.{}.inner.bias",
        "zero3": "gathers layer.experts.{}.inner for its forward",
    }
    for label, says in found.items():
        backend, _, route = label.partition(" route=")
        batch = 2 if route == "turned" else 1
        assert f"(batch {batch}, 2 steps)" in says
        if route == "together" or backend in ("ddp", "zero1"):  # which sorts what it reduces
            assert says.startswith("SAME, all 2 ranks"), label
            continue
        assert says.startswith("DIFFERENT, "), label
        named = expected[backend]
        first, other = (1, 0) if backend == "zero2" and route == "turned" else (0, 1)  # backward turns the order
        assert f"in step 0; rank 0 {named.format(first)}" in says, label
        assert f"rank 1 {named.format(other)}" in says, label
    matrix = bench.matrix(
        workload={"name": "routed:RoutedLayers"},
        matrix={"backend": ["fsdp", "fsdp2"], "route": "apart", "batch": 1},
        measure={"steps": 2},
    )
    fsdp, fsdp2 = said(bench("audit", "collectives", matrix, "--out", str(bench.folder / "units"), expect=1)).values()
    assert fsdp.startswith("SAME, all 2 ranks")
    assert "in step 0; rank 0 reduces the gradient of layer.experts.0.inner.weight; rank 1" in fsdp2


def test_a_loader_that_keeps_training_waiting_is_told_from_one_that_does_not(bench: Bench) -> None:
    """Steps and samples sleep for so long that other tests, which use the cores meanwhile, change no verdict."""
    matrix = bench.matrix(
        workload={"name": "unfed:Toy", "sleep_s": 0.25},
        matrix={"backend": "ddp", "sample_s": [0, 0.2], "batch": 2},
        include=[{"backend": "ddp", "num_cams": 2, "batch": 3}],
    )
    out = ("--out", str(bench.folder / "run"))
    bench("run", matrix, *out)
    written = (bench.folder / "run/matrix.yaml").read_text()
    found = said(bench("audit", "dataloader", matrix, "--batch", "2", "--steps", "6", *out, expect=1))
    fed, starved, other = found.values()
    assert fed.startswith("FED, the loader delivers")
    assert starved.startswith("STARVED, the loader delivers")
    assert "that training consumes at batch 2" in starved
    assert other.startswith("NO TRAINING FIGURE")
    assert "no training result of the cell at this batch is stored here" in other
    assert (bench.folder / "run/matrix.yaml").read_text() == written


def test_a_loader_is_timed_over_the_whole_window_wherever_a_batch_holds_its_tensors(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unfed:Toy"},
        matrix={"backend": "ddp", "sample": ["tuple", "nested", "tensor", "text", "empty"], "batch": 2},
        include=[{"backend": "ddp", "sample": "dict", "sample_s": 0.1, "batch": 2}],
    )
    workers = ("measure.dataloader_workers=3", "--steps", "7")
    output = bench("audit", "dataloader", matrix, *workers, "--out", str(bench.folder / "run"), expect=1)
    *held, text, empty, slow = said(output).values()
    assert all(says.startswith("NO TRAINING FIGURE, the loader delivers") for says in [*held, slow])
    for says, kind in ((text, "list"), (empty, "dict")):
        assert says.startswith("NOT MEASURED, failed")
        assert f"the loader's batch, a {kind}, holds no tensor: a sample of" in says
    samples_per_s = float(re.search(r"delivers ([\d.]+) samples/s", slow)[1])  # type: ignore[index]
    # Three sleepers on each of two ranks make 60; by most of their fetches alone, which come in bursts, thousands.
    assert samples_per_s < 2 * 60


def test_unused_parameters_are_those_that_ddp_itself_names(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unreached:Toy"},
        matrix={
            "backend": ["ddp", "fsdp", "zero2"],
            "part": ["none", "spare", "sometimes"],
            "find_unused_parameters": [False, True],
            "batch": 1,
        },
        exclude=[
            # Here one rank waits for the other's gradients forever.
            {"part": "sometimes", "find_unused_parameters": False},
            *({"backend": backend, "part": part} for backend in ("fsdp", "zero2") for part in ("none", "sometimes")),
        ],
        measure={"warmup_steps": 1, "steps": 9, "phase_steps": 0},
    )
    out = ("--out", str(bench.folder / "run"))
    select = ("--select", "backend=ddp")
    Bench(bench.folder)("run", matrix, *out, *select, expect=1, TORCH_DISTRIBUTED_DEBUG="INFO")
    output = bench("audit", "params", matrix, "--zero-grad", *out, expect=1)
    found = said(output)
    sharded = [says for label, says in found.items() if not label.startswith("ddp")]
    assert len(sharded) == 4
    assert all("they are not trained, and ddp needs find_unused_parameters on" in says for says in sharded)
    on_ddp = {label: says for label, says in found.items() if label.startswith("ddp")}
    assert len(on_ddp) == len(bench.results()) == 5
    for (label, says), result in zip(on_ddp.items(), bench.results(), strict=True):
        part, find = result.axes["part"], result.axes["find_unused_parameters"]
        folder = bench.folder / "run/attempts" / result.attempt.cell.slug / "audit-params"
        [looked] = read_audits(folder, 1, Looked)
        groups = {one.name: one for one in group(looked)}
        unused = {name: one for name, one in groups.items() if one.state == "UNUSED"}
        assert groups["tower.*"].state == "FROZEN"
        assert groups["gate.*"].state == groups["silent"].state == "ZERO-GRAD"
        assert not any("same_gate" in name for name in groups)
        assert set(unused) == ({f"{part}.*"} if part != "none" else set())
        assert ("must stay on" in says, "DDP will fail or hang" in says) == (
            bool(unused) and find,
            bool(unused) and not find,
        )
        if unused and not find:
            assert isinstance(result.outcome, Failed), label
            assert "Expected to have finished reduction in the prior iteration" in result.outcome.reason
            indices = re.search(r"did not receive grad for rank \d: ((?:\d+ )*\d+)", result.outcome.reason)
            assert tuple(map(int, indices[1].split())) == unused[f"{part}.*"].ddp_indices
            names = re.search(r"Parameters which did not receive grad for rank \d: (.+)", result.outcome.reason)
            assert set(names[1].split(", ")) == {one.name for one in looked.parameters if part in one.name}
        else:
            assert result.outcome.kind == "ok", label
    assert "| UNUSED    | spare" in output
