"""Another program takes the rendezvous port: one retry, noted in the result and in the report."""

import datetime
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from table import FaultBench, judge

from bench.diagnosis.classify import classify
from bench.records.outcome import Result
from bench.records.rank_outcome import RankError, RankKilled

HERE = Path(__file__).parent


def report(bench: FaultBench) -> str:
    return (bench.folder / "run/report-full.md").read_text()


def test_a_taken_port_gets_a_second_try_and_the_sweep_goes_on(bench: FaultBench) -> None:
    matrix = bench.matrix(
        workload={"name": "squatter:Squatter"},
        matrix={},
        include=[
            *({"backend": backend, "squats": 1, "batch": 2} for backend in ("ddp", "fsdp", "zero2")),
            {"backend": "ddp", "squats": 2, "batch": 2},
            {"backend": "ddp", "squats": 0, "batch": 2},
        ],
    )
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    output = bench(*run, expect=1)
    *once, twice, _ = bench.results()
    for result in once:
        assert "address already in use" in result.retried
        assert f"{result.attempt.cell.backend} squats=1, batch 2: retrying after rendezvous" in output
        judge(bench, "port taken, once", "set-up", result, "ok")
    assert "EADDRINUSE" in (twice.retried or "")
    judge(bench, "port taken, twice", "set-up", twice, "failed rendezvous", says="EADDRINUSE", rank=0)
    doubts = report(bench).partition("## Rows to doubt")[2]
    assert doubts.count("second try; the first failed: rendezvous: DistNetworkError") == 3
    assert "second try, rendezvous: rank 0 in join: DistNetworkError" in report(bench)
    assert "5 of them finished before" in bench(*run, expect=1)  # there is no third try


@pytest.mark.parametrize(("times", "expected"), [(1, "ok"), (2, "failed rendezvous")])
def test_a_port_that_is_taken_from_the_launcher(bench: FaultBench, times: int, expected: str) -> None:
    matrix = bench.matrix(matrix={"backend": ["ddp", "single"], "batch": 2})
    left = bench.folder / "times"
    left.write_text("1\n" * times)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HERE / "taken_port"), bench.python_path]),
            "TAKEN_PORT": str(taken.getsockname()[1]),
            "TAKEN_TIMES": str(left),
        }
        run = ("run", matrix, "--out", str(bench.folder / "run"), "--isolation", "launch")
        bench(*run, expect=times - 1, **environment)
    result = bench.results()[0]
    assert (result.isolation, left.read_text()) == ("launch", "")
    assert "address already in use" in (result.retried or "")
    judge(bench, "port taken from the launcher", "start", result, expected)


# --- torch's real error messages --------------------------------------------------------------------------------------

SOON = datetime.timedelta(seconds=1)


def said(join: Callable[[], object]) -> str:
    with pytest.raises(dist.DistError) as error:
        join()
    return f"{type(error.value).__name__}: {error.value}"


def listener(answer: bytes) -> int:
    """The port of a program that is not a store."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            caller, _ = server.accept()
            caller.sendall(answer)
            caller.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def store(port: int, *, master: bool) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, 2, master, SOON)


def nobody() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


MEETINGS: dict[str, Callable[[], object]] = {
    "the port is taken": lambda: store(listener(b""), master=True),
    "the others never come": lambda: store(0, master=True),
    "nobody is there": lambda: store(nobody(), master=False),
    "who is there hangs up": lambda: store(listener(b""), master=False),
    "who is there speaks another language": lambda: store(listener(b"HTTP/1.1 400 Bad Request\r\n" * 9), master=False),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_what_a_rank_says_that_finds_no_other_is_a_rendezvous(meeting: str) -> None:
    error = RankError(rank=0, phase="setup", error=said(MEETINGS[meeting]), traceback="Traceback", at=2.0)
    other = RankKilled(rank=1, phase="setup", signal="SIGKILL", at=1.0, by_bench="another rank had failed")
    outcome = classify([error, other], world_size=2)
    assert (outcome.fault, outcome.rank, outcome.reason) == ("rendezvous", 0, error.error)


def test_a_run_that_ended_before_its_second_try_has_it_later(bench: FaultBench) -> None:
    matrix = bench.matrix(
        workload={"name": "squatter:Squatter"}, matrix={"backend": "ddp", "squats": [1, 0], "batch": 2}
    )
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    bench(*run)
    [folder] = (bench.folder / "run/superseded").glob("*/b2.0")  # the first try; as if bench had ended behind it
    first = Result.model_validate_json((folder / "result.json").read_bytes())
    second = bench.folder / "run/attempts" / first.attempt.slug / "result.json"
    bench.give_up(second)
    second.unlink()
    assert "1 of them finished before" in bench(*run)
    judge(bench, "killed before the retry", "set-up", bench.results()[0], "ok")
