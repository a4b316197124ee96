"""What a step leaves out of a model and of its samples, on real ranks: the same figures on every backend."""

import pytest
import torch
from kept import KeptBench
from torch.utils.data import default_collate
from unseen import LENGTH, WIDTH, vlm

from bench.records.outcome import Failed, Ok, Result
from bench.records.rank_outcome import Coverage
from bench.report.advice import advise
from bench.report.summary import summarize

BACKENDS = ("ddp", "fsdp", "fsdp2", "zero2", "zero3")
LAYER = WIDTH * WIDTH + WIDTH
TOWER = 3 * WIDTH * WIDTH + WIDTH + 6 * LAYER
LANGUAGE = 16 * WIDTH + 2 * LAYER + 2 * WIDTH
DROPPED = {"pixel_values": "float32", "idx": "int64", "text": "list"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    bench = KeptBench(tmp_path_factory.mktemp("unseen"))
    matrix = bench.matrix(
        workload={"name": "unseen:vlm"},
        matrix={
            "backend": [*BACKENDS],
            "forward": ["named", "wrapped"],
            "trained": ["all", "adapters"],
            "find_unused_parameters": [True],
            "batch": 2,
        },
        exclude=[{"forward": "wrapped", "trained": "adapters"}],
        include=[
            {"backend": "ddp", "forward": "named", "trained": "all", "find_unused_parameters": False, "batch": 2},
        ],
    )
    said = bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    assert said.count(": invalid, 68.7 % of the trained parameters (632) get no gradient: vision_tower;") == 5
    return bench.results()


def of(run: list[Result], **options: str) -> dict[str, Result]:
    """The measured results with these options, by backend."""
    return {
        one.attempt.cell.backend: one
        for one in run
        if isinstance(one.outcome, Ok)
        and all(one.attempt.cell.options[name] == value for name, value in options.items())
    }


def coverages(results: dict[str, Result]) -> dict[str, Coverage]:
    found = {name: [rank.coverage for rank in one.outcome.ranks] for name, one in results.items()}  # type: ignore
    assert all(one == each[0] and one is not None for each in found.values() for one in each)
    return {name: each[0] for name, each in found.items()}


def test_a_tower_that_is_not_used_is_counted_to_the_scalar_on_each_backend(run: list[Result]) -> None:
    found = coverages(of(run, forward="named", trained="all"))
    assert set(found) == set(BACKENDS)
    right = Coverage(
        parameters=TOWER + LANGUAGE,
        trainable_parameters=TOWER + LANGUAGE,
        without_gradient=TOWER,
        without_gradient_names=("vision_tower",),
        not_run=TOWER,
        not_run_names=("vision_tower",),
        dropped_keys=DROPPED,
    )
    assert {name: one for name, one in found.items() if one != right} == {}


def test_of_a_model_that_is_partly_frozen_what_is_trained_counts(run: list[Result]) -> None:
    found = coverages(of(run, forward="named", trained="adapters"))
    assert set(found) == set(BACKENDS)
    assert {(one.trainable_parameters, one.without_gradient) for one in found.values()} == {(8 * LAYER, 6 * LAYER)}
    assert {one.without_gradient_names for one in found.values()} == {("vision_tower",)}


def test_a_forward_that_hands_on_its_keywords_gets_the_pictures(run: list[Result]) -> None:
    """As in a plain step of torch: all is trained, and the loss is the one with pictures."""
    results = of(run, forward="wrapped")
    for one in coverages(results).values():
        assert (one.without_gradient, one.not_run, one.dropped_keys) == (0, 0, {})
    torch.manual_seed(run[0].attempt.cell.measure.seed)
    model, samples = vlm("wrapped")
    batch = default_collate(samples)
    right, blind = (model(**{**batch, **change})["loss"].item() for change in ({}, {"pixel_values": None}))
    assert abs(right - blind) > 0.1
    assert len(samples) == LENGTH == 4  # two ranks with two samples each
    for name, one in results.items():
        assert one.outcome.ranks[0].warmup_losses[0] == pytest.approx(right, rel=0.02), name


def test_ddp_that_waits_for_gradients_names_them_and_the_setting(run: list[Result]) -> None:
    [failed] = [one.outcome for one in run if not isinstance(one.outcome, Ok)]
    assert isinstance(failed, Failed)
    assert "vision_tower; set train.find_unused_parameters=true" in failed.reason
    assert "Expected to have finished reduction" in (failed.evidence or "")


def test_only_rows_of_the_whole_model_are_recommended(run: list[Result]) -> None:
    chosen = [one.chosen for one in advise(summarize(run)) if one.chosen]
    assert [row.settings["forward"] for row in chosen] == ["wrapped"]
