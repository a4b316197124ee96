"""What a launch is given, what its log says of its end, and that nothing below it outlives it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from examples import cell

from bench import processes
from bench.launch import attempt_files
from bench.launch.accelerate_launch import Launch
from bench.launch.attempt_files import launch_command
from bench.launch.environment import FOREIGN, RENDEZVOUS, launch_environment
from bench.launch.rank_servers import World, _plain_config
from bench.launch.watch import FIRST_STEP_S, LEAST_S, Limits, Watch, cause_of_death, exit_codes
from bench.observe.beats import BeatFile
from bench.records.cell import Attempt
from bench.records.phases import Stage
from bench.store.beats import Beat
from bench.store.spool import Spec

# --- why a launch ended ---------------------------------------------------------------------------------------------

DIE = """
import os, signal, sys, time
if os.environ.get("RANK", "0") == sys.argv[1]:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def launched(folder: Path, *arguments: str, num_processes: int) -> tuple[int, str]:
    """Exit code and log of a real `accelerate launch` in which a rank dies."""
    (folder / "die.py").write_text(DIE)
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if num_processes > 1 else "NO",
        "machine_rank": 0,
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": num_processes,
        "use_cpu": num_processes == 1,
    }
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(config))
    command = [
        *launch_command([], python=sys.executable, config_file=folder / "accelerate.yaml")[:-2],
        str(folder / "die.py"),
        *arguments,
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize(
    ("ranks", "rank", "cause"),
    [
        (2, "1", "the process of rank 1 was killed by SIGKILL"),
        (1, "0", "the process of rank 0 was killed by SIGKILL"),
    ],
)
def test_the_rank_that_died_first_is_blamed_by_a_real_launch(tmp_path: Path, ranks: int, rank: str, cause: str) -> None:
    code, log = launched(tmp_path, rank, num_processes=ranks)
    assert code == 1, log
    assert cause_of_death(code, log) == cause


TORCHRUN = """\
==============================
bench.runner FAILED
------------------------------
Failures:
[1]:
  time      : 2030-01-01_00:00:00
  host      : localhost
  rank      : {other} (local_rank: {other})
  exitcode  : -15 (pid: 11)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 11
------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2030-01-01_00:00:00
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 12) {word}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
==============================
"""


@pytest.mark.parametrize(
    ("returncode", "log", "cause"),
    [
        (-9, TORCHRUN.format(other=0, rank=1, code=-11, word=""), "accelerate launch was killed by SIGKILL"),
        (-15, "", "accelerate launch was killed by SIGTERM"),
        (
            1,
            TORCHRUN.format(other=0, rank=1, code=-11, word=" (SIGSEGV)"),
            "the process of rank 1 was killed by SIGSEGV",
        ),
        (1, TORCHRUN.format(other=0, rank=17, code=1, word=""), "the process of rank 17 ended with exit code 1"),
        (1, "Traceback\n  ...\nValueError: no such config\n", "exit code 1: ValueError: no such config"),
        (2, "  \n", "accelerate launch ended with exit code 2: its log is empty"),
        (0, "all is well", "accelerate launch ended with exit code 0: all is well"),
    ],
)
def test_cause_of_death(returncode: int, log: str, cause: str) -> None:
    assert cause_of_death(returncode, log).endswith(cause)


def test_all_ranks_that_failed_by_themselves_are_known_the_first_one_first() -> None:
    assert exit_codes(TORCHRUN.format(other=0, rank=1, code=-11, word="")) == {1: -11}  # the other was asked to end
    both = TORCHRUN.format(other=1, rank=0, code=1, word="").replace(
        "-15 (pid: 11)  (SIGTERM)", "-9 (pid: 11)  (SIGKILL)"
    )
    assert list(exit_codes(both).items()) == [(0, 1), (1, -9)]
    assert exit_codes("died with <Signals.SIGSEGV: 11>.") == {0: -11}
    assert exit_codes("config:\n rank : 8 lora\n exitcode : 7\nValueError: real") == {}


def test_a_single_rank_that_ends_by_itself_is_named_with_its_exit_code() -> None:
    log = "subprocess.CalledProcessError: Command '['python', 'x']' returned non-zero exit status 3."
    assert cause_of_death(1, log) == "the process of rank 0 ended with exit code 3"


def test_a_last_line_without_end_is_cut() -> None:
    assert len(cause_of_death(1, "x" * 10_000)) < 400


# --- watching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beats", "slowest"),
    [
        ([("measure", 5), ("measure", 3)], ("measure", 3)),
        ([("measure", 0), ("warmup", 9)], ("warmup", 9)),
        ([("setup", 0), ("start", 0)], ("start", 0)),
        ([("done", 0), ("phases", 2)], ("phases", 2)),
        ([("phases", 0), ("measure", 50)], ("measure", 50)),
        ([None, ("measure", 4)], ("measure", 4)),
    ],
)
def test_the_slowest_rank_is_shown(
    tmp_path: Path, beats: list[tuple[str, int] | None], slowest: tuple[str, int]
) -> None:
    for rank, beat in enumerate(beats):
        if beat is not None:
            BeatFile(tmp_path, rank)(*beat, 50)
    BeatFile(tmp_path, len(beats))("start")  # a rank of another world
    shown: list[Beat] = []
    assert Watch(tmp_path, len(beats), Limits(60, None), shown.append).pause() is None
    assert [(beat.phase, beat.step, beat.steps) for beat in shown] == [(*slowest, 50)]


def test_without_a_beat_nothing_is_shown_and_time_passes(tmp_path: Path) -> None:
    shown: list[Beat] = []
    watch = Watch(tmp_path, 2, Limits(0.12, None), shown.append)
    start = time.monotonic()
    while not watch.pause():
        assert time.monotonic() - start < 5
    assert time.monotonic() - start >= 0.12
    assert shown == []


def test_what_passed_while_bench_itself_was_stopped_is_held_against_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.launch.watch.ASLEEP_S", 0.5)
    BeatFile(tmp_path, 0)("setup")
    watch = Watch(tmp_path, 2, Limits(1.0, 0.8), lambda _: None)
    for _ in range(3):
        time.sleep(1.0)
        assert watch.pause() is None
    start = time.monotonic()
    while (reason := watch.pause()) is None:
        assert time.monotonic() - start < 5
    assert reason == "no progress for 1 s"
    assert time.monotonic() - start > 0.3


@pytest.mark.parametrize(
    ("phase", "limits", "given_up"),
    [
        (None, Limits(60, 0.2), False),  # imports
        ("compile", Limits(60, 0.2), False),
        ("setup", Limits(60, 0.2), True),
        *((stage, Limits(60, 0.2, set_up_counts=False), False) for stage in ("start", "join", "setup")),
        ("warmup", Limits(60, 0.2, set_up_counts=False), True),
    ],
)
def test_what_counts_as_no_progress(tmp_path: Path, phase: str | None, limits: Limits, given_up: bool) -> None:
    if phase is not None:
        BeatFile(tmp_path, 0)(phase)
    watch = Watch(tmp_path, 2, limits, lambda _: None)
    assert any(watch.pause() for _ in range(6)) == given_up


@pytest.mark.parametrize(("stage", "patience_s"), [("measure", LEAST_S), ("checkpoint", FIRST_STEP_S)])
def test_a_checkpoint_may_take_longer_than_a_step(tmp_path: Path, stage: str, patience_s: float) -> None:
    beat, watch = BeatFile(tmp_path, 0), Watch(tmp_path, 1, Limits(60, None), lambda _: None)
    for step in range(3):
        beat(Stage.WARMUP, step, 3)
        watch._look(time.monotonic())
    beat(Stage(stage), 0, 4)
    watch._look(time.monotonic())
    assert watch._patience_s() == patience_s


# --- the files of a launch ------------------------------------------------------------------------------------------

ATTEMPT = Attempt(cell=cell("zero2"), batch_per_rank=4)
ENGINE = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
OWN = Attempt(
    cell=cell(
        "mine",
        accelerate={"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": ENGINE}},
    ),
    batch_per_rank=4,
)


def test_the_spec_is_the_attempt(tmp_path: Path) -> None:
    files = attempt_files.files(ATTEMPT, ("Layer",), "cpu", {}, str(tmp_path))
    assert set(files) == {"spec.json", "accelerate.yaml", "command.sh"}
    assert Spec.model_validate_json(files["spec.json"]) == Spec(attempt=ATTEMPT, device="cpu", units=("Layer",))


def test_a_deepspeed_json_is_written_and_named_by_its_path(tmp_path: Path) -> None:
    files = attempt_files.files(OWN, ("Layer",), "cpu", {}, str(tmp_path))
    assert json.loads(files["deepspeed.json"]) == ENGINE
    named = yaml.safe_load(files["accelerate.yaml"])["deepspeed_config"]["deepspeed_config_file"]
    assert named == str(tmp_path / "deepspeed.json")
    assert OWN.cell.accelerate == {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": ENGINE},
    }


HOSTILE = {"PLAIN": "1", "SPACES": "a b", "QUOTES": """it's "so" $HOME `id` \\ ;""", "EMPTY": "", "LINES": "a\nb"}


def test_the_command_launches_its_own_folder_with_the_recorded_environment(tmp_path: Path) -> None:
    folder, tools = tmp_path / "it's a folder", tmp_path / "bin"
    folder.mkdir()
    tools.mkdir()
    (folder / "command.sh").write_text(attempt_files.files(ATTEMPT, (), "cpu", HOSTILE, str(folder))["command.sh"])
    said = tmp_path / "said.json"
    program = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['SAID'], 'w'))"
    python = tools / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{program}" "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SAID": str(said)}
    done = subprocess.run(
        ["sh", "it's a folder/command.sh", "out here"], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    arguments, seen = json.loads(said.read_text())
    config = str(folder / "accelerate.yaml")
    assert arguments == [
        *("-m", "accelerate.commands.launch", "--config_file", config, "--main_process_port", "0"),
        *("-m", "bench.runner", "attempt", str(folder), "--out", "out here"),
    ]
    assert {name: seen[name] for name in HOSTILE} == HOSTILE
    assert done.stdout.decode() == "results: out here\n"


def test_the_command_unsets_what_a_launch_is_kept_from() -> None:
    foreign = [f"{prefix}X9_y" for prefix in FOREIGN] + [*RENDEZVOUS, "PMI_RANK"]
    user = {"PATH": os.environ["PATH"], "LINES": "a\nb", "MY_RANK": "1", **dict.fromkeys(foreign, "planted")}
    script = attempt_files.files(ATTEMPT, (), "cpu", {}, "")["command.sh"]
    [unset] = [line for line in script.splitlines() if line.startswith("unset ")]
    seen = subprocess.run(
        ["sh", "-euc", f"{unset}\nenv -0"], env=user, capture_output=True, text=True, check=True
    ).stdout
    names = {line.partition("=")[0] for line in seen.split("\0")} - {"PWD", "OLDPWD", "SHLVL", "_", ""}
    assert names == set(launch_environment(user, {}))
    assert names == {"PATH", "LINES", "MY_RANK"}


@pytest.mark.parametrize("program", ["exit 127", "exec PYTHON -I -S"])
def test_the_command_without_its_environment_says_so_and_makes_nothing(tmp_path: Path, program: str) -> None:
    (tmp_path / "command.sh").write_text(attempt_files.files(ATTEMPT, (), "cpu", {}, str(tmp_path))["command.sh"])
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n{program.replace("PYTHON", shlex.quote(sys.executable))} "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "TMPDIR": str(python.parent)}
    command = ["sh", "command.sh"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "activate the environment in which bench was started: python here has no bench\n"
    assert list(python.parent.iterdir()) == [python]


def test_the_command_shown_is_the_command_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("bench.launch.supervised.subprocess.Popen", lambda command, **_: started.append(command))
    Launch(Path("accelerate.yaml"), tmp_path / "launch.log", ["attempt", "x"], {})
    shown = launch_command(["attempt", "x"])
    [command] = started
    logs = command.index("--log_dir")
    assert command[logs : logs + 2] == ["--log_dir", str(tmp_path / "torchelastic")]  # the one difference
    assert (command[:logs] + command[logs + 2 :])[-len(shown) :] == [sys.executable, *shown[1:]]


def test_the_folders_that_torch_makes_end_with_the_launch(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "servers", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    (folder / "accelerate.yaml").write_text(_plain_config(World(2, 1)))
    added = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    launch = Launch(folder / "accelerate.yaml", folder / "launch.log", ["serve", str(folder), "single"], added)
    try:
        made = folder / "torchelastic"
        deadline = time.monotonic() + 120
        while not any(made.glob("*/*/1")) and launch.exit_reason() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert any(made.glob("*/*/1")), launch.output()
    finally:
        launch.kill()
    assert [path.name for path in sorted(folder.iterdir()) if path.is_dir()] == []
    assert list(temporary.iterdir()) == []


# --- ending processes -----------------------------------------------------------------------------------------------

TREE = """
import subprocess, sys, time
depth = int(sys.argv[1])
if depth:
    subprocess.Popen([sys.executable, __file__, str(depth - 1)], start_new_session=True)
time.sleep(60)
"""


def wait_for(condition: Callable[[], object], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_tree_is_ended_in_whatever_session_its_processes_are(tmp_path: Path) -> None:
    (tmp_path / "tree.py").write_text(TREE)
    with subprocess.Popen([sys.executable, str(tmp_path / "tree.py"), "2"], start_new_session=True) as root:
        wait_for(lambda: len({os.getsid(process.pid) for process in processes.tree(root.pid)}) == 3)
        tree = processes.tree(root.pid)
        assert processes.kill(tree) == []
        assert not any(alive(process) for process in tree)
    assert processes.tree(root.pid) == []


def test_killing_what_is_gone_is_fine() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        gone = processes.tree(process.pid)
    assert len(gone) == 1
    assert processes.kill(gone) == []
    assert processes.kill([]) == []


ROOT = Path(__file__).parents[2]
SUPERVISOR = [sys.executable, "-m", "bench.launch.supervisor"]


def test_all_below_the_supervisor_ends_when_its_parent_is_killed() -> None:
    """Also what leads a session of its own and was left behind."""
    start = "import subprocess as s, time; s.Popen('setsid sleep 60 &', shell=True)"
    sleep = [sys.executable, "-c", f"{start}; time.sleep(60)"]
    parent = (
        "import os, subprocess, time\n"
        f"subprocess.Popen([*{SUPERVISOR!r}, str(os.getpid()), '.', '0', *{sleep!r}], start_new_session=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT) as process:
        below = psutil.Process(process.pid)
        wait_for(lambda: "sleep" in {child.name() for child in below.children(recursive=True)})
        tree = below.children(recursive=True)
        assert len(tree) >= 3  # the supervisor, the command, and what it has left
        process.kill()
    wait_for(lambda: not any(map(alive, tree)), within_s=5)


def test_a_command_that_is_killed_takes_along_what_it_has_started_and_its_signal_is_told() -> None:
    program = "import os, subprocess as s; print(s.Popen(['sleep', '60']).pid, flush=True); os.kill(os.getpid(), 9)"
    command = [*SUPERVISOR, str(os.getpid()), ".", "0", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert not processes.runs(int(done.stdout))


def test_a_command_whose_parent_was_gone_before_it_looked_never_starts(tmp_path: Path) -> None:
    touch = [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert subprocess.run([*SUPERVISOR, str(gone.pid), ".", "0", *touch], cwd=ROOT, check=False).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_supervisor_passes_arguments_and_exit_code_on_and_names_the_launcher() -> None:
    named = f"os.environ[{processes.PARENT!r}] == str(os.getpid())"
    program = f"import os, sys; sys.exit(7 if sys.argv[1:] == ['a b', ''] and {named} else 1)"
    command = [*SUPERVISOR, str(os.getpid()), ".", "0", sys.executable, "-c", program, "a b", ""]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 7


def test_ranks_in_other_text_are_not_blamed() -> None:
    assert "rank 8" not in cause_of_death(1, "config:\n rank : 8 lora\n exitcode : 7\nValueError: real")


def test_a_signal_without_a_name_has_a_number() -> None:
    assert cause_of_death(-40, "") == "accelerate launch was killed by signal 40"
