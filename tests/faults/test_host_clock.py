"""The clock is set back by an hour during a run."""

import os
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from moments import Struck
from table import FaultBench, judge
from turns import SLOW

from bench.records.rank_outcome import RankError, RankKilled
from bench.store.spool import read_ranks

HERE = Path(__file__).parent


def test_durations_stay_true_and_the_cause_stays_before_its_consequence(bench: FaultBench) -> None:
    flag = bench.folder / "flag"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(HERE / "set_clock"), bench.python_path]),
        "CLOCK_SET_BACK": str(flag),
    }
    cells: list[dict[str, object]] = [{"turn": 1}, {"turn": SLOW}, {"turn": 3, "fault": "raise"}, {"turn": 4}]
    matrix = {"matrix": {}, "include": [{"backend": "ddp", "batch": 2, **cell} for cell in cells]}
    began = time.time()
    run = Struck(bench, matrix=matrix, start=partial(bench.start, **environment))
    run.come_to("measuring")
    flag.touch()
    code, output = run.end()
    assert code == 1, output
    took_s = time.time() - began
    for result in bench.results():
        assert 0 < result.wall_s < took_s
        assert began - 1 < datetime.fromisoformat(result.started_at).astimezone(UTC).timestamp() < time.time()
    failed = run.result(3)
    ended, cause = read_ranks(run.folder / "attempts" / failed.attempt.slug, 2)
    assert isinstance(cause, RankError)
    assert isinstance(ended, RankError | RankKilled)
    assert began < cause.at < ended.at < time.time()
    judge(bench, "clock set back", "measuring", run.result(SLOW), "ok")
    judge(bench, "clock set back, then a rank raises", "measuring", failed, "failed error", says="planted", rank=1)
