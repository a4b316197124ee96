"""What became of a job: Slurm's silence is no end, and bench's own end says more than Slurm's word."""

import pytest

from bench.launch.slurm.client import NEVER, JobStatus
from bench.launch.slurm.job_end import DONE, ENDING_S, FORGOTTEN_S, GOES_ON, REFUSED, job_end_of, never_runs
from bench.store.jobs import OUT_OF_TIME, End


@pytest.mark.parametrize(
    ("seen", "exit_code", "still_s", "state"),
    [
        (JobStatus("PENDING", "Priority"), None, 1e6, None),
        (JobStatus("RUNNING"), None, 1e6, None),
        (JobStatus("COMPLETING"), None, 1.0, None),
        (JobStatus("RUNNING"), 0, 0.0, DONE),
        (JobStatus("RUNNING"), 1, 0.0, None),  # an error in bench itself
        (JobStatus("FAILED"), 1, 0.0, "FAILED"),
        (None, 0, 0.0, DONE),
        (JobStatus("FAILED"), 2, 0.0, REFUSED),
        (JobStatus("RUNNING"), OUT_OF_TIME, 0.0, GOES_ON),
        (JobStatus("TIMEOUT"), -15, 0.0, "TIMEOUT"),
        (JobStatus("NODE_FAIL"), None, 0.0, "NODE_FAIL"),
        (JobStatus("CANCELLED"), -15, 0.0, "CANCELLED"),
        (JobStatus("COMPLETED"), None, 0.0, "COMPLETED"),  # bench did not end in it: its script did
        (JobStatus("RUNNING"), -9, 1.0, None),  # Slurm will say more
        (JobStatus("RUNNING"), -9, ENDING_S + 1, "FAILED"),
        (None, None, 1.0, None),  # a new job
        (None, None, FORGOTTEN_S + 1, "UNKNOWN"),
    ],
)
def test_how_a_job_ended(seen: JobStatus | None, exit_code: int | None, still_s: float, state: str | None) -> None:
    end = None if exit_code is None else End(exit_code=exit_code)
    found = job_end_of(seen, end, still_s)
    assert (found.state if found else None) == state


def test_only_reasons_that_do_not_pass_mean_never() -> None:
    assert (
        never_runs(JobStatus("PENDING", "PartitionNodeLimit")) == f"PartitionNodeLimit ({NEVER['PartitionNodeLimit']})"
    )
    for reason in ("Priority", "Resources", "ReqNodeNotAvail", "BeginTime", "None", "", "PartitionDown"):
        assert never_runs(JobStatus("PENDING", reason)) is None
    assert never_runs(JobStatus("RUNNING", "PartitionNodeLimit")) is None
    for reason in ("QOSMaxGRESPerJob", "QOSMinCpuNotSatisfied", "AssocMaxMemPerNode", "DependencyNeverSatisfied"):
        assert never_runs(JobStatus("PENDING", reason)) is not None
    for reason in ("QOSMaxGRESPerUser", "QOSGrpGRES", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit", "Dependency"):
        assert never_runs(JobStatus("PENDING", reason)) is None  # until other jobs end
