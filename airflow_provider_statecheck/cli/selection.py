"""Which operators of a job a command means."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import OperatorRecord
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError


def operators_of(view: JobView, uid: str | None) -> list[OperatorRecord]:
    """
    Return all operators of a job, or the one of a uid.

    :raises CheckpointNotFoundError: if there is none of that uid, naming those that there are.
    """
    found = [operator for operator in view.operators if uid in (None, operator.uid)]
    if not found:
        uids = ", ".join(operator.uid for operator in view.operators)
        raise CheckpointNotFoundError(f"Job {view.job.name!r} has no operator {uid!r}, only {uids}.")
    return found
