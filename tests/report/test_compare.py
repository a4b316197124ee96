"""Two runs against each other: arithmetic by hand and against scipy, verdicts on invented noise, the command line."""

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import bench
from examples import (
    CUDA_MACHINE,
    MACHINE,
    N_STEPS,
    in_few_steps,
    launched,
    noisy_steps,
    ok,
    rank,
    result,
    rss,
    vram,
    world,
)

from bench.errors import InputError
from bench.records.cell import Measure
from bench.records.conditions import Conditions
from bench.records.machine import Machine
from bench.records.observed import Observed
from bench.records.outcome import Failed, Ok, Oom, Reported, Skipped
from bench.records.outcome import Result as Record
from bench.records.verdict import Goal, Probe, Stopped
from bench.report.compare import GRANULE_BYTES, HEAP_BLOCK_BYTES, MAX_NEAREST, compare_runs
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.compare import open_questions, regressions, summary_line, tables
from bench.report.tables.speedup import how_launches_vary
from bench.statistics.intervals import student_t
from bench.statistics.launches import LaunchVariation
from bench.statistics.ratio import typical_of_launches, typical_ratios
from bench.statistics.verdict import speed
from bench.store.run_folder import Store

STEPS = N_STEPS
UNDECIDED = "1 of 1 attempt may be slower by more than 5.0 %: the gate could not decide there"
MORE = "; more launches in both runs decide more (measure.launches=5)\n"
"""Where a run has fewer."""
ASKED = Measure(warmup_steps=1, steps=STEPS, phase_steps=2)


# Runs


def run(*step_times_s: Sequence[float], batch: int = 2, machine: Machine = MACHINE, **changes: object) -> Record:
    return result(ok(*(step_times_s or ([0.1] * STEPS,) * 2)), batch=batch, machine=machine, **changes)


def test_a_run_against_itself_is_the_same_everywhere_also_where_it_was_disturbed() -> None:
    source = random.Random(0)
    results = [run(noisy_steps(source, jitter=0.5), noisy_steps(source), batch=batch) for batch in (1, 2)]
    imported = Reported(source="a paper", samples_per_s_global=10.0)
    two = compare_runs([*results, result(imported, batch=4)], [*results, result(imported, batch=4)])
    assert [pair.speed for pair in two.pairs] == ["SAME"] * 3
    assert [pair.space for pair in two.pairs] == ["SAME", "SAME", "n/a"]
    assert regressions(two, 0.0) == []


def imported(step_s: float, **changes: object) -> Record:
    return result(Reported(source="a paper", step_time_s_per_rank=(step_s,)), **changes)


def test_imported_figures_are_judged_by_the_rule_of_a_report() -> None:
    """One launch each, of which no steps are known."""
    two = compare_runs([imported(0.1)], [imported(0.112)])
    (pair,) = two.pairs
    assert pair.ratio is not None
    both = summarize([imported(0.1, backend="fsdp"), imported(0.112)])
    (of_report,) = {each.ratio.inverse for each in compare_axis(both, reference="fsdp").speed_ups}
    assert pair.ratio.estimate == pair.ratio.of_means == pytest.approx(1.12)
    assert pair.ratio.interval == pytest.approx(of_report.interval)
    assert pair.ratio.alarm == pytest.approx(of_report.alarm)
    assert pair.means.interval == pair.ratio.interval
    assert (pair.speed, pair.ratio.basis) == ("UNCLEAR", "assumed")
    assert open_questions(two, 0.05) == [UNDECIDED]
    shown = str(tables(two))
    assert "assumes that launches vary by 5.0 % (standard deviation). --noise replaces this." in shown
    assert "measure.launches" not in shown
    assert "1.120 (0.957 to 1.311)" in shown
    (far,) = compare_runs([imported(0.1)], [imported(0.2)]).pairs
    assert far.speed == "SLOWER"
    for throughput in (10.0, 5.0):
        other = result(Reported(source="a paper", samples_per_s_global=throughput))
        (pair,) = compare_runs([result(Reported(source="a paper", samples_per_s_global=10.0))], [other]).pairs
        assert pair.speed == ("SAME" if throughput == 10.0 else "SLOWER")


@pytest.mark.parametrize(
    ("head_s", "noise", "word", "exit_code"),
    [
        (0.112, "1%", "SLOWER", 1),
        (0.112, "5%", "UNCLEAR", 0),
        (0.101, "1%", "SAME", 0),
        (0.09, "1%", "FASTER", 0),
        (0.106, "1%", "UNCLEAR", 1),
    ],
)
def test_given_noise_decides_of_imported_figures(
    tmp_path: Path, head_s: float, noise: str, word: str, exit_code: int
) -> None:
    base, head = store(tmp_path / "base", imported(0.1)), store(tmp_path / "head", imported(head_s))
    gate = bench("compare", base, head, "--noise", noise, "--fail-on-regression", "5%")
    assert (f"Step: 1 {word}." in gate.stdout, gate.exit_code) == (True, exit_code)
    if word == "UNCLEAR" and exit_code:
        assert "say with --noise how much it varies, or pass with --unclear pass" in gate.stderr


def test_what_launches_of_this_machine_vary_by_says_nothing_of_imported_figures() -> None:
    launches = [launched(run([0.1 * s] * STEPS, batch=4), n) for n, s in enumerate((1.0, 1.001, 0.999), 1)]
    two = compare_runs([imported(0.1), *launches], [imported(0.112), *launches])
    of_import, of_launches = (pair.ratio for pair in two.pairs)
    assert of_import is not None
    assert of_launches is not None
    assert of_import.basis == "assumed"
    half = student_t(10, 1 - 0.01 / 2) * 0.05 * math.sqrt(2)
    assert of_import.alarm[1] == pytest.approx(1.12 * math.exp(half)), "both attempts are judged together"


@pytest.mark.parametrize(
    ("more_bytes", "space"),
    [(0, "SAME"), (GRANULE_BYTES, "SAME"), (2**30, "MORE"), (-(2**30), "LESS"), (None, "n/a")],
)
def test_memory_is_the_worst_ranks(more_bytes: int | None, space: str) -> None:
    base = rss(4.0)
    peak = base.peak_allocated_bytes
    assert peak is not None
    new = base.model_copy(update={"peak_allocated_bytes": None if more_bytes is None else peak + more_bytes})
    head = result(world(rank(0, memory=rss(1.0)), rank(1, memory=new)))
    (pair,) = compare_runs([result(world(rank(0, memory=base), rank(1, memory=base)))], [head]).pairs
    assert pair.space == ("LESS" if more_bytes == -(2**30) else space)


def peaks(*mib: float, machine: Machine = MACHINE) -> list[Record]:
    """Launches of one attempt with these peaks."""
    memory = vram(1.0, 2.0) if machine is CUDA_MACHINE else rss(4.0)
    outcomes = [
        world(
            *(
                rank(number, memory=memory.model_copy(update={"peak_allocated_bytes": round(each * 2**20)}))
                for number in (0, 1)
            )
        )
        for each in mib
    ]
    attempt = result(outcomes[0], machine=machine).attempt
    return [
        result(outcome, machine=machine).model_copy(update={"attempt": attempt.model_copy(update={"launch": number})})
        for number, outcome in enumerate(outcomes, 1)
    ]


@pytest.mark.parametrize(
    ("base", "head", "on_cpu", "on_gpu"),
    [
        ([20], [40], "UNCLEAR", "MORE"),  # a small model that doubles its memory
        ([40], [20], "UNCLEAR", "LESS"),
        ([20], [21.9], "SAME", "SAME"),
        ([20], [20 + HEAP_BLOCK_BYTES / 2**20 + 1], "MORE", "MORE"),
        ([20, 20.5, 19.5], [40, 40.5, 39.5], "MORE", "MORE"),  # launches show how little they differ by chance
        ([200, 300, 250], [260, 350, 290], "UNCLEAR", "UNCLEAR"),  # or how much
        ([20, 20, 20, 20], [20, 20, 20, 23.5], "SAME", "SAME"),  # the largest of four says little
        ([2000], [2030], "SAME", "SAME"),  # within 2 %
        ([4000], [4100], "MORE", "MORE"),
    ],
)
def test_memory_is_judged_by_what_launches_differ_by(
    base: list[float], head: list[float], on_cpu: str, on_gpu: str
) -> None:
    for machine, verdict in ((MACHINE, on_cpu), (CUDA_MACHINE, on_gpu)):
        (pair,) = compare_runs(peaks(*base, machine=machine), peaks(*head, machine=machine)).pairs
        assert pair.space == verdict
    assert regressions(compare_runs(peaks(*base), peaks(*head)), 0.05) == []


def test_the_nearest_is_looked_for_of_the_first_cells_alone() -> None:
    gone = [run(axes={"num_cams": n}, batch=batch) for n in range(MAX_NEAREST + 1) for batch in (1, 2)]
    lone = compare_runs([run(), *gone], [run()]).only_in_one
    assert len(lone) == len(gone)
    assert lone[0].nearest == lone[1].nearest == "options.num_cams none instead of 0"
    assert [each.nearest for each in lone[-3:]] == [f"options.num_cams none instead of {MAX_NEAREST - 1}", "n/a", "n/a"]


def test_a_broken_attempt_is_named_in_one_short_line() -> None:
    two = compare_runs([run()], [result(Failed(rank=0, phase="bwd", reason="a\n\x1b[31m" * 1000), measure=ASKED)])
    (line,) = regressions(two, 0.05)
    assert line.isprintable()
    assert len(line) < 500


def test_figures_that_became_invalid_fail_the_gate() -> None:
    right, wrong = result(), result(ok(losses=(1.0, math.nan, math.nan)))
    (line,) = regressions(compare_runs([right], [wrong]), 0.05)
    assert "was ok and is invalid: " in line
    assert regressions(compare_runs([wrong], [right]), 0.05) == regressions(compare_runs([wrong], [wrong]), 0.05) == []


def test_what_changed_its_outcome_and_what_only_one_run_has() -> None:
    oom = Oom(rank=0, phase="bwd", reason="out of memory")
    base = [
        run(batch=1),
        run(batch=2),
        result(oom, measure=ASKED, batch=4),
        result(Skipped(reason="no"), measure=ASKED, batch=8),
        run(batch=16),
    ]
    base.append(run(axes={"num_cams": 4}))
    head = [
        run(batch=1),
        result(oom, measure=ASKED, batch=2),
        run(batch=4),
        result(Skipped(reason="no"), measure=ASKED, batch=8),
        run(batch=32),
    ]
    two = compare_runs(base, head)
    assert len(two.pairs) == two.unmeasured == 1
    assert [(changed.base.outcome, changed.head.outcome) for changed in two.changed] == [("ok", "oom"), ("oom", "ok")]
    assert [(lone.run, lone.row.batch_per_rank) for lone in two.only_in_one] == [
        ("base", 16),
        ("base", 2),
        ("head", 32),
    ]
    assert two.only_in_one[0].nearest == "this cell at batch 1, 2, 4, 8, 32"
    assert two.only_in_one[1].nearest == "options.num_cams none instead of 4"
    assert "1 SAME" in summary_line(two)
    assert "Outcome changed: 2. Only in base: 2. Only in head: 1." in summary_line(two)
    assert [line.partition(":")[2] for line in regressions(two, 0.05)] == [
        " was ok and is oom: rank 0 in bwd: out of memory",
        " was ok, and head has no such batch",
        " was ok, and head has no result of its cell",
    ]


def test_a_short_attempt_stands_back_behind_the_full_one() -> None:
    full = run([0.1] * STEPS)
    short = in_few_steps(full).model_copy(update={"outcome": ok([0.5] * 3)})
    for results in ([short, full], [full, short]):
        (pair,) = compare_runs(results, [full]).pairs
        assert pair.speed == "SAME"
    (pair,) = compare_runs([short], [full]).pairs
    assert pair.unlike == ("steps: a few against all",)


def test_unlike_machines_are_refused_and_marked_when_allowed() -> None:
    other = MACHINE.model_copy(update={"cpu": "Other CPU"})
    with pytest.raises(InputError, match="unlike machines: cpu: Example CPU against Other CPU") as refusal:
        compare_runs([run()], [run(machine=other)])
    assert "--allow-unlike" in str(refusal.value)
    (pair,) = compare_runs([run()], [run(machine=other)], allow_unlike=True).pairs
    assert "machine" not in pair.name
    assert pair.unlike == ("cpu: Example CPU against Other CPU",)


def test_what_ran_otherwise_than_asked_is_told() -> None:
    regime = rank().regime.model_copy(update={"weights_dtype": "float32"})
    ranks = tuple(rank(number).model_copy(update={"regime": regime, "threads": 2}) for number in (0, 1))
    head = result(Ok(ranks=ranks)).model_copy(update={"isolation": "launch"})
    assert compare_runs([result()], [head]).unlike == (
        "isolation: fork against launch",
        "threads of a rank: 1 against 2",
        "weights_dtype: bfloat16 against float32",
    )


def test_runs_of_other_settings_do_not_meet_and_the_fields_are_named() -> None:
    head = run([0.1] * 5, [0.1] * 5)
    with pytest.raises(InputError, match="no attempt is in both runs") as refusal:
        compare_runs([run(), run(backend="zero2")], [head])
    assert "measure.steps 50 instead of 5" in str(refusal.value)
    assert "backend" not in str(refusal.value)


# The command


def store(folder: Path, *results: Record, machine: Machine = MACHINE) -> str:
    kept = Store(folder)
    with kept.open(machine, [each.attempt.cell for each in results], ""):
        for each in results:
            kept.begin(each.attempt)
            kept.finish(each)
    return str(folder)


def test_the_command_prints_both_runs_and_fails_on_request(tmp_path: Path) -> None:
    oom = result(Oom(rank=0, phase="bwd", reason="a|b <out>"), measure=ASKED, batch=4)
    base = store(tmp_path / "base", run(batch=2), run(batch=4))
    head = store(tmp_path / "head", run([0.15] * STEPS, [0.14] * STEPS, batch=2), oom)
    done = bench("compare", base, head)
    assert done.exit_code == 0
    assert re.search(r"\| ddp, batch 2 +\| +100 \| +150 \| +1\.500 \| .* \*\*SLOWER\*\* ", done.stdout)
    assert re.search(r"\| ddp, batch 4 \| ok +\| oom +\| rank 0 in bwd: a\\\|b &lt;out&gt;", done.stdout)
    failing = bench("compare", base, head, "--fail-on-regression", "5%")
    assert failing.exit_code == 1
    assert failing.stdout == done.stdout
    assert [line.split(":")[0] for line in failing.stderr.splitlines()] == ["regression"] * 2
    only_oom = bench("compare", base, head, "--fail-on-regression", "50%")
    assert only_oom.exit_code == 1
    assert "was ok and is oom" in only_oom.stderr
    same = bench("compare", base, base, "--fail-on-regression", "0")
    assert (same.exit_code, same.stderr) == (0, "")


def test_an_option_of_one_run_is_named_where_it_is_an_axis_of_the_other() -> None:
    options = {"preset": "tiny", "num_cams": 1}
    base = [result(options=options), result(options=options, batch=4)]
    head = [result(options=options), result(axes={"num_cams": 4})]
    two = compare_runs(base, head)
    assert [pair.name for pair in two.pairs] == ["ddp, num_cams 1, batch 2"]
    assert [lone.name for lone in two.only_in_one] == ["ddp, num_cams 1, batch 4", "ddp, num_cams 4, batch 2"]


def test_a_gate_that_cannot_decide_says_so(tmp_path: Path) -> None:
    base = store(tmp_path / "base", run(batch=2), run(batch=4))
    head = store(tmp_path / "head", run([0.104] * STEPS, [0.104] * STEPS, batch=2), run(batch=4))
    once = bench("compare", base, head, "--fail-on-regression", "3%")
    assert (once.exit_code, once.stderr) == (
        0,
        f"1 of 2 attempts may be slower by more than 3.0 %: the gate could not decide there{MORE}",
    )
    assert "1 UNCLEAR" in bench("compare", base, head, "--same-within", "3%").stdout
    gate = bench("compare", base, head, "--same-within", "3%", "--fail-on-regression", "3%")
    assert (gate.exit_code, gate.stderr) == (
        0,
        f"1 of 2 attempts may be slower by more than 3.0 %: the gate could not decide there{MORE}",
    )
    far = bench("compare", base, head, "--same-within", "3%", "--fail-on-regression", "50%")
    assert (far.exit_code, far.stderr) == (0, "")


def test_the_gate_judges_by_its_own_threshold_and_not_by_the_margin(tmp_path: Path) -> None:
    """3 % longer is SAME within 5 %, and is beyond a gate of 2 %; one of 3 % cannot tell."""
    base, head = (store(tmp_path / name, run([s] * STEPS)) for name, s in (("base", 0.1), ("head", 0.103)))
    gate = ("--noise", "0.1%", "--fail-on-regression")
    proven = bench("compare", base, head, *gate, "2%")
    assert "1 SAME" in proven.stdout
    assert (proven.exit_code, proven.stderr) == (
        1, "regression: ddp, batch 2: its step takes 1.030 times as long (1.026 to 1.034)\n"
    )  # fmt: skip
    open_ = bench("compare", base, head, *gate, "3%")
    assert (open_.exit_code, open_.stderr) == (
        0,
        "1 of 1 attempt may be slower by more than 3.0 %: the gate could not decide there\n",
    )
    beyond = bench("compare", base, head, *gate, "4%")
    assert (beyond.exit_code, beyond.stderr) == (0, "")


def test_the_gate_has_decided_where_the_table_says_same() -> None:
    """Of an attempt that is SAME with 95 % confidence, the interval of an alarm may reach further than the margin."""
    base, head = ([run([s] * STEPS, batch=batch) for batch in range(1, 13)] for s in (0.1, 0.1002))
    two = compare_runs(base, head)
    assert {pair.speed for pair in two.pairs} == {"SAME"}
    assert max(pair.ratio.alarm[1] for pair in two.pairs if pair.ratio) > 1.05
    assert open_questions(two, 0.05) == []
    assert len(two.undecided(0.01)) == len(two.pairs)


def test_the_command_is_loud_about_unlike_machines(tmp_path: Path) -> None:
    base = store(tmp_path / "base", run())
    head = store(tmp_path / "head", run(machine=CUDA_MACHINE), machine=CUDA_MACHINE)
    refused = bench("compare", base, head)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert "Traceback" not in refused.stderr
    done = bench("compare", base, head, "--allow-unlike")
    assert done.exit_code == 0
    assert "UNLIKE" in done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("| ddp"))
    assert row.count("(!)") == row.count("|") - 2  # every figure: all columns but the attempt's name


@pytest.mark.parametrize("option", ["--noise", "--same-within", "--fail-on-regression"])
@pytest.mark.parametrize("text", ["much", "-1%", "nan", ""])
def test_a_share_that_is_none_is_one_message(tmp_path: Path, option: str, text: str) -> None:
    folder = store(tmp_path / "run", run())
    done = bench("compare", folder, folder, option, text)
    assert done.exit_code == 2
    assert f"bench: {option}: {text!r} is not a percentage or a fraction" in done.stderr


def test_given_noise_decides(tmp_path: Path) -> None:
    base, head = store(tmp_path / "base", run()), store(tmp_path / "head", run([0.15] * STEPS, [0.15] * STEPS))
    shown = bench("compare", base, head).stdout
    assert "1 SLOWER" in shown
    assert "Except for SAME, it has 99.0 % confidence" in shown
    assert "1 UNCLEAR" in bench("compare", base, head, "--noise", "10%").stdout
    assert "1 SAME" in bench("compare", base, head, "--same-within", "0.8").stdout


def test_what_head_never_measured_fails_the_gate(tmp_path: Path) -> None:
    """A run that was cut off, or one of whose results is torn."""
    skipped = run(batch=8).model_copy(update={"outcome": Skipped(reason="no")})
    base = store(tmp_path / "base", run(batch=2), run(batch=4), skipped)
    head = store(tmp_path / "head", run(batch=2))
    assert bench("compare", base, head).exit_code == 0
    gate = bench("compare", base, head, "--fail-on-regression", "5%")
    assert (gate.exit_code, gate.stderr) == (
        1, "regression: ddp, batch 4: was ok, and head has no such batch\n1 attempt of base not measured in head\n"
    )  # fmt: skip
    more = bench("compare", head, base, "--fail-on-regression", "5%")
    assert (more.exit_code, more.stderr) == (0, "")


def test_a_batch_that_a_search_chose_need_not_be_chosen_again(tmp_path: Path) -> None:
    base, head = [run(batch=2), run(batch=4)], [run(batch=2)]
    folders = [store(tmp_path / "base", *base), store(tmp_path / "head", *head)]
    Store(tmp_path / "base").finish_probe(
        Probe(cell=base[0].attempt.cell, axes={}, goal=Goal(), found=Stopped(reason="it hung"))
    )
    gate = bench("compare", *folders, "--fail-on-regression", "5%")
    assert (gate.exit_code, gate.stderr) == (0, "")
    cut_off = in_few_steps(run(batch=1))
    assert open_questions(compare_runs(base, [*head, cut_off]), 0.05) == []
    assert open_questions(compare_runs(base, head), 0.05) == ["1 attempt of base not measured in head"]


def test_launches_that_fail_now_fail_the_gate() -> None:
    base = peaks(20, 20, 20)
    head = [
        base[0],
        *(one.model_copy(update={"outcome": Failed(rank=0, phase="bwd", reason="no")}) for one in base[1:]),
    ]
    said = regressions(compare_runs(base, head), 0.05)
    assert len(said) == 1
    assert said[0].endswith("2 of 3 launches failed, and 0 of 3 in base: rank 0 in bwd: no")
    assert regressions(compare_runs(head, head), 0.05) == regressions(compare_runs(head, base), 0.05) == []


def test_failed_is_no_measurement(tmp_path: Path) -> None:
    failed = result(Failed(rank=0, phase="start", reason="no"))
    two = compare_runs([failed], [failed])
    assert (two.pairs, two.unmeasured, two.changed) == ((), 1, ())


# Tails

THIRD = [0.2 if index % 3 == 2 else 0.1 for index in range(50)]
"""16 of 50 steps doubled."""


def test_a_changed_tail_fails_the_gate_and_is_described(tmp_path: Path) -> None:
    once = [0.19 if index == 7 else 0.1 for index in range(50)]
    base, head = store(tmp_path / "base", run(once, once)), store(tmp_path / "head", run(THIRD, THIRD))
    assert bench("compare", base, head).exit_code == 0
    gate = bench("compare", base, head, "--fail-on-regression", "5%")
    assert gate.exit_code == 1
    assert gate.stderr.startswith(
        "regression: ddp, batch 2: 16 of 50 steps (3, 6, 9, 12, 15, 18, 21, 24, …) take 2.00 times the typical step;"
        " base: 1 of 50 steps (8) takes 1.90 times the typical step; its mean step takes 1.297 times as long ("
    )
    assert "Step: 1 SLOWER TAIL." in gate.stdout
    assert "**SLOWER TAIL**" in gate.stdout
    assert "## Slow steps" in gate.stdout
    gone = bench("compare", head, base, "--fail-on-regression", "5%")
    assert (gone.exit_code, gone.stderr) == (0, UNDECIDED + MORE)
    assert "1 FASTER TAIL" in gone.stdout
    lenient = bench("compare", base, head, "--fail-on-regression", "50%")
    assert (lenient.exit_code, lenient.stderr) == (0, "")


def test_a_tail_of_both_runs_is_no_change(tmp_path: Path) -> None:
    shifted = [*THIRD[1:], 0.1]
    base, head = store(tmp_path / "base", run(THIRD, THIRD)), store(tmp_path / "head", run(shifted, shifted))
    gate = bench("compare", base, head, "--fail-on-regression", "5%", "--noise", "1%")
    assert (gate.exit_code, gate.stderr) == (0, "")
    assert "Step: 1 SAME." in gate.stdout
    assert "Tails" not in gate.stdout


def test_other_work_beside_one_run_explains_its_tail(tmp_path: Path) -> None:
    """The gate cannot decide and says so; if the same disturbed both runs, it explains nothing."""
    unknown = {name: None for name in Conditions.model_fields if name != "gpus"}
    busy = Conditions.model_validate({**unknown, "others_cpu_share": 0.4})
    quiet, slow = run(), run(THIRD, THIRD).model_copy(update={"conditions": busy})
    base, head = store(tmp_path / "base", quiet), store(tmp_path / "head", slow)
    gate = bench("compare", base, head, "--fail-on-regression", "5%", "--unclear", "pass")
    assert (gate.exit_code, gate.stderr) == (0, UNDECIDED + MORE)
    fails = bench("compare", base, head, "--fail-on-regression", "5%")
    assert fails.exit_code == 1
    assert "takes 1.320 times as long, and is UNCLEAR at 5.0 % (head: other processes took 40.0 %" in fails.stderr
    assert "head: other processes took 40.0 % of the CPU during the attempt." in gate.stdout
    both = store(tmp_path / "both", quiet.model_copy(update={"conditions": busy}))
    told = bench("compare", both, head, "--fail-on-regression", "5%")
    assert told.exit_code == 1
    disturbed = (
        "Disturbed, which may be why steps differ: 1 of 1 attempt of base, such as: other processes took 40.0 % of the"
        " CPU during the attempt; 1 of 1 attempt of head, such as: other processes took 40.0 % of the CPU during the"
        " attempt."
    )
    assert told.stderr.splitlines()[-1] == disturbed
    assert disturbed in told.stdout
    assert "Disturbed" not in bench("compare", base, base).stdout


def test_other_work_beside_the_slower_run_alone_may_be_why_it_is_slower(tmp_path: Path) -> None:
    unknown = {name: None for name in Conditions.model_fields if name != "gpus"}
    busy = Conditions.model_validate({**unknown, "others_cpu_share": 0.4})
    longer = [0.17] * STEPS
    quiet, slow = run(), run(longer, longer)
    beside = slow.model_copy(update={"conditions": busy})
    base, head, alone = (store(tmp_path / name, each) for name, each in (("b", quiet), ("h", beside), ("a", slow)))
    gate = bench("compare", base, head, "--fail-on-regression", "5%")
    assert gate.exit_code == 1, "launches do not vary by 70 %"
    assert "is UNCLEAR at 5.0 % (head: other processes took 40.0 % of the CPU" in gate.stderr
    assert bench("compare", base, head, "--fail-on-regression", "5%", "--unclear", "pass").exit_code == 0
    assert "Step: 1 SLOWER." in bench("compare", base, alone).stdout
    assert "Step: 1 UNCLEAR." in bench("compare", head, base).stdout
    both = store(tmp_path / "both", quiet.model_copy(update={"conditions": busy}))
    assert "Step: 1 SLOWER." in bench("compare", both, head).stdout
    spiked = [0.1 if number % 10 else 0.32 for number in range(STEPS)]
    was_busy = store(tmp_path / "spiked", run(spiked, spiked).model_copy(update={"conditions": busy}))
    longer_steps = store(tmp_path / "longer", run([0.12] * STEPS, [0.12] * STEPS))
    gate = bench("compare", was_busy, longer_steps, "--fail-on-regression", "5%", "--noise", "1%")
    assert (gate.exit_code, "1 SLOWER" in gate.stdout) == (1, True), "what disturbed base makes head no slower"
    slightly = store(
        tmp_path / "slightly", run([0.112] * STEPS, [0.112] * STEPS).model_copy(update={"conditions": busy})
    )
    gate = bench("compare", base, slightly, "--fail-on-regression", "5%", "--noise", "1%")
    assert (gate.exit_code, "1 UNCLEAR" in gate.stdout) == (1, True), "less than launches vary by if nothing is known"


def test_a_burst_is_not_the_same_and_fails_the_gate_unless_it_may_pass(tmp_path: Path) -> None:
    burst = [0.2 if 20 <= index < 36 else 0.1 for index in range(50)]
    base, head = store(tmp_path / "base", run()), store(tmp_path / "head", run(burst, burst))
    gate = bench("compare", base, head, "--fail-on-regression", "5%", "--unclear", "pass")
    assert (gate.exit_code, gate.stderr) == (0, UNDECIDED + MORE)
    assert bench("compare", base, head, "--fail-on-regression", "5%").exit_code == 1
    assert "16 of 50 steps (21 to 36) take 2.00 times the typical step" in gate.stdout
    assert "the shares of slow steps may be equal" in gate.stdout


def test_noise_replaces_what_launches_vary_by_for_the_typical_and_the_mean_step() -> None:
    base = [launched(result(ok([step_s] * STEPS)), n) for n, step_s in enumerate((0.09, 0.1, 0.11, 0.1, 0.1), 1)]
    head = [launched(result(ok([1.1 * step_s] * STEPS)), n) for n, step_s in enumerate((0.09, 0.1, 0.11, 0.1, 0.1), 1)]
    widths = {}
    for noise in (None, 0.001, 0.2):
        (pair,) = compare_runs(base, head, noise=noise).pairs
        assert pair.ratio is not None
        widths[noise] = pair.ratio.interval[1], pair.means.interval[1], pair.launches_vary
    assert all(
        small < shown < large for shown, small, large in zip(*(widths[n] for n in (None, 0.001, 0.2)), strict=True)
    )


@pytest.mark.parametrize(
    ("launches", "known", "said"),
    [
        ((3, 3), 5, "Sides with three or four launches: launches of this machine differ by 0.3 % "),
        ((3, 3), 5, "; the variation of three or four launches counts if it is larger. Other attempts: their own"),
        ((2, 3), 5, "Sides with fewer than three launches: launches of this machine differ by 0.3 % "),
        ((2, 3), 5, " degrees of freedom), standard deviation. Other attempts: their own variation. 1.0 % between"),
        ((5, 5), 0, "Three launches a side: their own variation. 1.0 % between the runs is added."),
    ],
)
def test_the_legend_says_which_attempts_rest_on_the_variation_of_the_machine(
    launches: tuple[int, int], known: int, said: str
) -> None:
    """Another attempt of so many launches is what tells it."""

    def of(scale: float, number: int, batch: int) -> list[Record]:
        steps_s = [0.1 * scale * level for level in (1.0, 1.003, 0.997, 1.004, 0.996)[:number]]
        return [launched(run([s] * STEPS, batch=batch), n) for n, s in enumerate(steps_s, 1)]

    base, head = (
        [*of(scale, number, 2), *of(scale, known, 4)] for scale, number in zip((1.0, 1.001), launches, strict=True)
    )
    shown = " ".join(tables(compare_runs(base, head))[0].notes)
    assert said in shown


def test_the_legend_says_where_the_attempts_themselves_give_the_width() -> None:
    base = [run([0.1] * STEPS, batch=batch) for batch in range(1, 6)]
    scattered = [run([0.1 * s] * STEPS, batch=batch) for batch, s in enumerate((0.96, 0.98, 1.001, 1.02, 1.04), 1)]
    said = "no interval is narrower than their ratios differ among themselves, whatever --noise says: "
    for noise, of in ((0.001, "5 of 5"), (0.005, "5 of 5"), (0.2, "")):
        two = compare_runs(base, scattered, noise=noise)
        notes = " ".join(tables(two)[0].notes)
        assert (f"{said}{of} attempts would have a narrower one." in notes) is bool(of)
        assert ("among themselves" in notes) is bool(of)
    alike = compare_runs(base, [run([0.1001] * STEPS, batch=batch) for batch in range(1, 6)], noise=0.001)
    assert "among themselves" not in str(tables(alike))
    four = compare_runs(base[:4], scattered[:4], noise=0.001)
    assert "among themselves" not in str(tables(four))
    *_, same = compare_runs([*base, run(batch=6)], [*scattered, run(batch=6)], noise=0.001).pairs
    assert same.ratio is not None
    assert not same.ratio.as_wide_as_spread, "the same measurement"


def test_the_legend_names_all_sides_with_few_launches() -> None:
    machine = LaunchVariation(sd=0.01, degrees=10, source="known")
    (said,) = how_launches_vary({"variation"}, [machine], [], {1, 3}, own=True)
    assert said == (
        "Sides with fewer than five launches: launches of this machine differ by 1.0 % (known, 10 degrees of freedom),"
        " standard deviation; the variation of three or four launches counts if it is larger."
    )


def test_what_disturbed_head_excuses_it_at_a_gate_below_the_margin_too() -> None:
    unknown = {name: None for name in Conditions.model_fields if name != "gpus"}
    busy = Conditions.model_validate({**unknown, "others_cpu_share": 0.4})
    slow = run([0.103] * STEPS, [0.103] * STEPS)
    alone = compare_runs([run()], [slow], noise=0.001)
    assert alone.slower(0.02)
    beside = compare_runs([run()], [slow.model_copy(update={"conditions": busy})], noise=0.001)
    assert not beside.slower(0.02)


def test_the_mean_step_is_compared_whatever_samples_a_step_took() -> None:
    seen = [Observed(optimizer="AdamW", samples=samples) for samples in (2 * STEPS, 4 * STEPS)]
    ranks = [rank(0, [0.1] * STEPS).model_copy(update={"observed": each}) for each in seen]
    one, other = (result(world(each)) for each in ranks)
    (pair,) = compare_runs([one], [other]).pairs
    assert pair.means.estimate == pytest.approx(1.0)


def test_what_keeps_a_verdict_is_the_variation_from_which_its_interval_reaches_the_margin() -> None:
    (pair,) = compare_runs([run()], [run([0.15] * STEPS, [0.15] * STEPS)], margin=0.05).pairs
    assert pair.ratio is not None
    assert pair.ratio.tips_at is not None
    for more, word in ((0.99, "SLOWER"), (1.01, "UNCLEAR")):
        known = LaunchVariation(sd=more * pair.ratio.tips_at, degrees=10, source="")
        sides = [typical_of_launches([[[step_s] * STEPS]]) for step_s in (0.1, 0.15)]
        (found,) = typical_ratios([(sides[0], sides[1])], variation=known)
        assert speed(found, 0.05) == word
