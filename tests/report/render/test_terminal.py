"""What a terminal of 100 columns shows."""

import re

import pytest
from examples import CUDA_MACHINE, ok, on_terminal, rank, result, vram, world

from bench.records.outcome import Oom, Result
from bench.records.verdict import Goal, Probe, Stopped, Verdict
from bench.report.naming import REASON_LIMIT
from bench.report.render import markdown, terminal
from bench.report.tables import sections
from bench.report.tables.searches import searches
from bench.report.tables.sections import Choices, Report


def test_four_axes_stay_readable_on_a_terminal_of_100_columns() -> None:
    switches = {"num_cams": 4, "attention": "eager", "grad_ckpt": False}
    outcome = world(rank(memory=vram(30, 40)))
    results = [
        result(outcome, backend="fsdp_grad_op", axes=switches, batch=16, machine=CUDA_MACHINE),
        result(outcome, axes={"num_cams": 1, "attention": "sdpa", "grad_ckpt": True}, machine=CUDA_MACHINE),
        result(Oom(rank=0, phase="forward", reason="word " * 60), batch=32, axes=switches, machine=CUDA_MACHINE),
    ]
    text = on_terminal(results)
    assert max(len(line) for line in text.splitlines()) <= 100
    # Whole words: no name or number is folded into two lines.
    for word in ("fsdp_grad_op", "attention", "dataload", "samples/s", "allocated", "reserved", "50.0 %", "160"):
        assert word in text


def test_a_terminal_shows_the_answer_first() -> None:
    results = [result(), result(ok(backend="zero2"), backend="zero2"), result(backend="fsdp", num_processes=4)]
    text = on_terminal(results)
    titles = ["What to run", "Which backend is faster", "Not compared", "All results", "Phases, mean ms"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert "\n- For num_processes 2: train with ddp, batch 2: 40.0 samples/s" in text
    assert "too close to call" in text
    assert "they differ in num_processes." in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 100
    assert re.search(r"\x1b\[1mWhat to run\x1b\[0m\n- ", colored := on_terminal(results, color="standard"))
    assert re.search(r"\x1b\[2m- fsdp, num_processes 4 is not compared", colored)


def test_a_terminal_shows_what_was_asked_for() -> None:
    attention = [result(ok((s,) * 3, (s,) * 3), axes={"attention": a}) for a, s in (("sdpa", 0.1), ("eager", 0.2))]
    assert "is faster" not in on_terminal(attention)
    against = on_terminal(attention, Choices(axis="attention", reference="eager"))
    assert re.search(r"best against best +sdpa 2\.00× .* eager +2 ", against)
    unlike = [result(), result(backend="zero2", num_processes=4)]
    assert "UNLIKE" not in on_terminal(unlike)
    assert "UNLIKE in num_processes" in " ".join(
        on_terminal(unlike, Choices(allowed=frozenset({"num_processes"}))).split()
    )


def test_a_terminal_says_why_each_search_ended() -> None:
    results = [result(axes={"num_cams": n}) for n in (1, 4)]
    ended = [
        Stopped(reason="batch 3 failed, without a sign that memory was short: \x1b[31mno [bold]beat[/]"),
        Verdict(
            max_batch_per_rank=None, certificate="nothing_fits", fits=None, fails=1, best=None, safe=None, points=0,
            thrashing=(), why="batch 1 does not fit",
        ),
    ]  # fmt: skip
    probes = [
        Probe(cell=one.attempt.cell, axes=one.axes, goal=Goal(), found=found)
        for one, found in zip(results, ended, strict=True)
    ]
    lines = [
        line
        for each in terminal.render(Report(results=results, probes=probes).sections)
        if (line := str(each)).startswith("ddp, num_cams") and "attempts/" not in line
    ]
    assert lines == [
        "ddp, num_cams 1: batch 3 failed, without a sign that memory was short: \\x1b[31mno [bold]beat[/]",
        "ddp, num_cams 4: batch 1 does not fit",
    ]
    (probe,) = terminal.mark_up(searches(probes[1:]))[2:]
    assert str(probe) == "ddp: batch 1 does not fit"


def test_a_searchs_own_reason_is_whole_and_the_reason_of_an_error_loses_its_end() -> None:
    cell, words = result().attempt.cell, " ".join(f"word{number}" for number in range(60))
    verdict = Verdict(
        max_batch_per_rank=None, certificate="nothing_fits", fits=None, fails=1, best=None, safe=None, points=0,
        thrashing=(), why=words,
    )  # fmt: skip
    whole, shortened = (
        searches([Probe(cell=cell, axes={}, goal=Goal(), found=found)]).rows[0][-1]
        for found in (verdict, Stopped(reason=words))
    )
    assert whole == words
    assert words.startswith(f"{shortened.removesuffix(' …')} ")
    assert len(shortened) <= REASON_LIMIT


def test_a_terminal_is_sent_no_markup_of_a_setting() -> None:
    text = on_terminal([result(axes={"attention": name}) for name in ("[bold]a[/]", "b\x1b[31m")], color="standard")
    assert "[bold]a[/]" in text
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(
    ("results", "choices", "sentence"),
    [
        ([result()], Choices(), None),
        ([result()], Choices(reference="ddp"), "backend is ddp in all results: nothing to compare."),
        (
            [result(axes={"attention": "sdpa"}), result(backend="fsdp", axes={"attention": "sdpa"})],
            Choices(axis="attention"),
            "attention is sdpa in all results: nothing to compare.",
        ),
        (
            [
                result(axes={"attention": "sdpa"}),
                result(Oom(rank=0, phase="bwd", reason="x"), axes={"attention": "eager"}),
            ],
            Choices(axis="attention"),
            "attention is sdpa in all results that were measured: nothing to compare.",
        ),
    ],
)
def test_nothing_to_compare_is_said_where_it_was_asked_for(
    results: list[Result], choices: Choices, sentence: str | None
) -> None:
    text = markdown.render(sections.Report(results=results, choices=choices).sections)
    if sentence is None:
        assert "is faster" not in text
    else:
        assert f"## Which {choices.axis} is faster\n\n{sentence}\n" in text
        assert sentence in " ".join(on_terminal(results, choices).split())
