"""
What the end of a Dag run means for the checkpoints of a job that is named after it.

Flink's shutdown of a completed store, told on rows: each checkpoint goes or stays as its properties say for the way in which
the job ended. A job with a name of its own lives on from run to run, so no run ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.job_status import JobStatus
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.pruning import owners_of_run
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction

log = logging.getLogger(__name__)


def ended_attempts(view: JobView) -> tuple[AttemptRecord, ...]:
    """Return the newest attempt of each operator that ends with its run, if it has ended and there is something to settle."""
    if is_test_job(view.job.name) or not owners_of_run(view):
        return ()
    # Aligned checkpoints are in a store of their own, which ends with their job when its coordinator says so.
    own = (o for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID)
    newest = (view.current_attempt(o) for o in own if _settled_by_run(view, o))
    return tuple(a for a in newest if a is not None and a.status is not AttemptStatus.RUNNING)


def status_of(attempt: AttemptRecord, run: JobStatus) -> JobStatus:
    """
    Return how an operator's part of a run ended.

    :param run: How the run ended. It may succeed although this attempt did not, and then has to be cleared to go on.
    """
    is_done = attempt.status is AttemptStatus.FINISHED
    return JobStatus.FAILED if run is JobStatus.FINISHED and not is_done else run


def discard_ended(tx: JobTransaction, ended: Mapping[OperatorId, JobStatus]) -> tuple[int, ...]:
    """
    Take away from restore what does not stay after the end of its run; its bytes go with the next garbage collection.

    :param ended: How each operator ended.
    :return: The checkpoints that go.
    """
    view = tx.view()
    gone: list[int] = []
    for operator in view.operators:
        if operator.operator_id in ended:
            gone += _end_operator(tx, operator, _settled_by_run(view, operator), ended[operator.operator_id])
    return tuple(gone)


def _end_operator(
    tx: JobTransaction, operator: OperatorRecord, checkpoints: tuple[CheckpointRecord, ...], status: JobStatus
) -> list[int]:
    going = [c for c in checkpoints if c.properties.discard_on(status)]
    for checkpoint in going:
        subsumed = replace(checkpoint, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
        tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)
    if checkpoints[-1:] == tuple(going[-1:]):
        # An attempt that comes after this must start afresh, not fail for want of what was given up on purpose.
        tx.save_operator(replace(operator, generation=operator.generation + 1))
    _tell(tx.job.name, operator, status, going, [c for c in checkpoints if c not in going])
    return [c.checkpoint_id for c in going]


def _tell(
    job: str,
    operator: OperatorRecord,
    status: JobStatus,
    going: list[CheckpointRecord],
    kept: list[CheckpointRecord],
) -> None:
    for checkpoint in going:
        log.info(
            "Job %s operator %s: run %s, checkpoint %s goes", job, operator.uid, status.value, checkpoint.checkpoint_id
        )
    for checkpoint in kept if going else ():
        log.info("Job %s operator %s: run %s, kept at %s", job, operator.uid, status.value, checkpoint.location)


def _settled_by_run(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    mine = view.of_operator(operator.operator_id)
    if any(c.awaits_commit for c in mine):
        # What its sink has prepared would be lost; the run can still be cleared, and the next attempt commits it.
        return ()
    return tuple(c for c in mine if c.is_restorable and c.generation == operator.generation)
