"""The verdicts of audits on real ranks."""

import re

import pytest
from harness import Bench
from test_optional_parts import POLICY

from bench.audit.params import Looked, group
from bench.records.outcome import Failed
from bench.store.spool import read_audits


def said(output: str) -> dict[str, str]:
    """The verdict on each cell, by its label."""
    lines = re.findall(r"^\*\*(.+?): (.+)\*\*$", output.replace("\\_", "_"), re.MULTILINE)
    assert len(dict(lines)) == len(lines)
    return dict(lines)


def test_collectives_part_where_each_rank_decides_for_itself(bench: Bench) -> None:
    backends = ["ddp", "fsdp", "fsdp2", "zero3"]
    matrix = bench.matrix(
        workload=POLICY,
        matrix={"backend": backends, "branch_sync": ["none", "agree", "hoist"], "batch": 1},
    )
    audit = ("audit", "collectives", matrix, "--steps", "5", "--out", str(bench.folder / "run"))
    found = said(bench(*audit, expect=1))
    assert len(found) == 3 * len(backends)
    for label, says in found.items():
        backend, _, sync = label.partition(" branch_sync=")
        if sync == "none" and backend != "ddp":
            assert says.startswith("DIFFERENT"), label
            for rank in (0, 1):  # each asks in the model for another thing
                assert re.search(rf"rank {rank} issued [^;]+ in \w+ \(model/\w+\.py:\d+\)", says), label
        else:  # under ddp no forward issues a collective of its own, so there is nothing to part at
            assert says.startswith("SAME, all 2 ranks"), label
    alike = ("--select", "branch_sync=agree", "--select", "backend=fsdp")
    assert list(said(bench(*audit, *alike))) == ["fsdp branch_sync=agree"]
    bench.assert_gone()


@pytest.mark.alone  # its steps are held against its samples
def test_a_loader_that_keeps_training_waiting_is_told_from_one_that_does_not(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unfed:Toy", "sleep_s": 0.04}, matrix={"backend": "ddp", "sample_s": [0, 0.05], "batch": 2}
    )
    out = ("--out", str(bench.folder / "run"))
    audit = ("audit", "dataloader", matrix, "--steps", "6", *out)
    assert all(says.startswith("NO TRAINING FIGURE") for says in said(bench(*audit)).values())
    bench("run", matrix, *out)
    written = (bench.folder / "run/matrix.yaml").read_text()
    other = said(bench(*audit, "--batch", "3")).values()  # whose steps are others
    assert all("no training result of the cell at this batch is stored here" in says for says in other)
    fed, starved = said(bench(*audit, expect=1)).values()
    assert fed.startswith("FED, the loader delivers")
    assert starved.startswith("STARVED, the loader delivers")
    assert "that training consumes at batch 2" in starved
    assert (bench.folder / "run/matrix.yaml").read_text() == written


def test_with_workers_the_window_counts_and_not_the_bursts(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "unfed:Toy", "sample_s": 0.1}, matrix={"backend": "ddp", "batch": 1})
    many = ("measure.dataloader_workers=3", "--steps", "7", "--out", str(bench.folder / "run"))
    output = bench("audit", "dataloader", matrix, *many)
    [says] = said(output).values()
    samples_per_s = float(re.search(r"delivers ([\d.]+) samples/s", says)[1])  # type: ignore[index]
    # Three sleepers on each of two ranks make 60; by most of their fetches alone it would be thousands.
    assert samples_per_s < 2 * 60


def test_tensors_are_found_wherever_a_batch_holds_them(bench: Bench) -> None:
    kinds = ["tuple", "nested", "tensor", "text", "empty"]
    matrix = bench.matrix(workload={"name": "unfed:Toy"}, matrix={"backend": "ddp", "sample": kinds, "batch": 2})
    output = bench("audit", "dataloader", matrix, "--steps", "2", "--out", str(bench.folder / "run"), expect=1)
    *held, text, empty = said(output).values()
    assert all(says.startswith("NO TRAINING FIGURE, the loader delivers") for says in held)
    for says, kind in ((text, "list"), (empty, "dict")):
        assert says.startswith("NOT MEASURED, failed")
        assert f"the loader's batch, a {kind}, holds no tensor: a sample of" in says


def test_unused_parameters_are_those_that_ddp_itself_names(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unreached:Toy"},
        matrix={
            "backend": "ddp",
            "part": ["none", "spare", "sometimes"],
            "find_unused_parameters": [False, True],
            "batch": 1,
        },
        # Here one rank waits for the other's gradients forever.
        exclude=[{"part": "sometimes", "find_unused_parameters": False}],
        measure={"warmup_steps": 1, "steps": 9, "phase_steps": 0},
    )
    out = ("--out", str(bench.folder / "run"))
    bench("run", matrix, *out, expect=1, TORCH_DISTRIBUTED_DEBUG="INFO")
    output = bench("audit", "params", matrix, "--zero-grad", *out, expect=1)
    found = said(output)
    assert len(found) == len(bench.results()) == 5
    for (label, says), result in zip(found.items(), bench.results(), strict=True):
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
            assert indices is not None
            assert tuple(map(int, indices[1].split())) == unused[f"{part}.*"].ddp_indices
            names = re.search(r"Parameters which did not receive grad for rank \d: (.+)", result.outcome.reason)
            assert names is not None
            assert set(names[1].split(", ")) == {one.name for one in looked.parameters if part in one.name}
        else:
            assert result.outcome.kind == "ok", label
    assert "| UNUSED    | spare" in output
    bench("audit", "params", matrix, *out, "--select", "part=spare", "--axis", "backend=fsdp,zero2")
