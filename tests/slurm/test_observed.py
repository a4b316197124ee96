"""A script on two nodes, measured from outside: its own launcher meets where bench says."""

import yaml
from harness import HERE
from runs import SlurmBench

from bench.records.outcome import Ok

COMMAND = (
    "torchrun --nnodes {num_nodes} --node_rank {node_rank} --master_addr {main_address} --master_port {main_port}"
    " --nproc_per_node {ranks_per_node} plain_ddp.py --batch {batch} --style {style}"
)


def test_a_script_on_two_nodes_ends_on_both_after_the_same_step(bench: SlurmBench) -> None:
    file = bench.folder / "nodes.yaml"
    content = {
        "command": COMMAND.split(),
        "folder": str(HERE / "scripts"),
        "matrix": {"style": ["plain", "forks"], "batch": 8},
        "measure": {"warmup_steps": 2, "steps": 6, "launches": 1},
        "launch": {"num_processes": 2},
    }
    file.write_text(yaml.safe_dump(content))
    output = bench.run(str(file), "--nodes", "2")
    for result in bench.store().results():
        assert isinstance(result.outcome, Ok), output
        assert [rank.node for rank in result.outcome.ranks] == ["n1", "n2"]
        assert [rank.regime.ranks_per_node for rank in result.outcome.ranks] == [1, 1]
        assert [rank.observed and rank.observed.forwards for rank in result.outcome.ranks] == [6, 6]
        assert all(rank.n_phase_steps and "rest" in rank.own_work_s for rank in result.outcome.ranks)
