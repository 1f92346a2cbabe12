"""The rows of a coordinator: what a repeated message does, and what a message may not name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgeAligned,
    AwaitedTask,
    BeginCheckpoint,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import checkpoint_uri, new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StaleAttemptError
from tests.aligned_job import CHECKPOINT, JOB, AlignedJob
from tests.messages import make_leadership

DECIDER = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0)


def beginning(job: AlignedJob, properties: CheckpointProperties = CHECKPOINT, **changes: Any) -> BeginCheckpoint:
    """Request a checkpoint and return the message that begins it."""
    leader, key = job.leader or job.lead(), new_key()
    assert [job.rows.enqueue(leader, DECIDER, key, properties) for _ in range(2)] == [(), ()]
    values: dict[str, Any] = {
        "leader": leader,
        "decider": DECIDER,
        "request_key": key,
        "coordinator": "one",
        "awaited": (AwaitedTask(operator_id=job.tasks[0].operator_id, attempt_id="try"),),
        "timeout_seconds": 600.0,
    }
    return BeginCheckpoint(**values | changes)


def begun(job: AlignedJob) -> CheckpointRecord:
    checkpoint = job.rows.begin(beginning(job))
    assert checkpoint is not None
    return checkpoint


def acknowledging(job: AlignedJob, attempt_id: str | None, **changes: Any) -> AcknowledgeAligned:
    assert job.leader is not None
    values: dict[str, Any] = {"checkpoint_id": 1, "is_written": True, "finalizer": "one"}
    return AcknowledgeAligned(leader=job.leader, attempt_id=attempt_id, **values | changes)


def test_a_repeated_begin_returns_its_checkpoint_and_another_coordinator_begins_none(job: AlignedJob) -> None:
    message = beginning(job)
    first = job.rows.begin(message)
    assert first is not None
    assert first.location == checkpoint_uri(job.storage.base_uri, JOB, 1)
    assert job.rows.begin(message) == first
    assert job.rows.begin(replace(message, coordinator="other")) is None
    assert len(job.jobs.describe(JOB).checkpoints) == 1


def test_a_savepoint_without_a_directory_is_refused(job: AlignedJob) -> None:
    message = beginning(job, CheckpointProperties.for_savepoint())
    with pytest.raises(InvalidConfigurationError, match="Expected a target or a savepoint_dir"):
        job.rows.begin(message)
    assert job.jobs.describe(JOB).checkpoints == ()


def test_the_coordinator_draws_the_name_of_a_savepoint(job: AlignedJob) -> None:
    message = beginning(job, CheckpointProperties.for_savepoint(), savepoint_dir="memory://savepoints")
    checkpoint = job.rows.begin(message)
    assert checkpoint is not None
    assert checkpoint.location.startswith(f"memory://savepoints/savepoint-{JOB[:6]}-")
    assert job.rows.begin(message) == checkpoint


def test_a_manifest_outside_of_the_checkpoint_is_refused(job: AlignedJob) -> None:
    location = begun(job).location
    for uri in ("memory://elsewhere/file", f"{location}/below/file", f"{location}/../file"):
        with pytest.raises(InvalidConfigurationError, match="manifest"):
            job.rows.acknowledge(acknowledging(job, "try", manifest=FileStateHandle(uri, 1)))
    assert job.rows.acknowledge(acknowledging(job, "try", is_written=False)).verdict is AcknowledgeResult.SUCCESS


def test_the_last_acknowledgement_hands_out_the_finalization_again_if_it_is_repeated(job: AlignedJob) -> None:
    begun(job)
    assert job.rows.acknowledge(acknowledging(job, "try")).finalizing is None
    last = acknowledging(job, None)
    first = job.rows.acknowledge(last)
    assert first.finalizing is not None
    assert {a.is_acknowledged for a in first.finalizing.acknowledgements} == {True}
    assert job.rows.acknowledge(last).finalizing == first.finalizing
    assert job.rows.acknowledge(replace(last, finalizer="other")).finalizing is None
    assert job.rows.acknowledge(replace(last, is_written=False)).finalizing is None


def aborting(job: AlignedJob, scope: AbortScope) -> AbortCheckpoints:
    assert job.leader is not None
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    return AbortCheckpoints(leader=job.leader, scope=scope, reason=reason, checkpoint_id=1)


@pytest.mark.parametrize("scope", [AbortScope.CHECKPOINT, AbortScope.EXPIRED, AbortScope.EVERYTHING])
def test_a_repeated_abort_returns_what_it_aborted_and_another_one_returns_nothing(
    job: AlignedJob, scope: AbortScope
) -> None:
    begun(job)
    job.pass_time(700)
    message = aborting(job, scope)
    first = job.rows.abort(message)
    assert [c.checkpoint_id for c in first] == [1]
    assert job.rows.abort(message) == first
    assert job.rows.abort(aborting(job, scope)) == ()


def test_a_delayed_abort_of_everything_leaves_later_checkpoints_alone(job: AlignedJob) -> None:
    begun(job)
    assert job.leader is not None
    message = aborting(job, AbortScope.EVERYTHING)
    job.rows.abort(message)
    job.rows.record_discards(job.leader, (1,))
    begun(job)
    assert [c.checkpoint_id for c in job.rows.abort(message)] == [1]
    assert job.status(2) == "pending"


def finalizing(job: AlignedJob) -> CheckpointRecord:
    """Acknowledge a checkpoint whose finalizer ends."""
    begun(job)
    job.rows.acknowledge(acknowledging(job, "try"))
    last = job.rows.acknowledge(acknowledging(job, None)).finalizing
    assert last is not None
    return last.checkpoint


def test_a_repeated_takeover_returns_what_it_took_over_and_another_one_waits_for_its_lease(job: AlignedJob) -> None:
    finalizing(job)
    job.pass_time(600)
    assert job.leader is not None
    first = job.rows.take_over(job.leader, "two", 60.0)
    assert [c.checkpoint.checkpoint_id for c in first.finalizing] == [1]
    assert job.rows.take_over(job.leader, "two", 60.0) == first
    assert job.rows.take_over(job.leader, "three", 60.0).finalizing == ()


def test_a_finalizer_that_was_replaced_no_longer_holds_its_checkpoint(job: AlignedJob) -> None:
    record, leader = finalizing(job), job.leader
    assert leader is not None
    assert job.rows.is_finalizing(leader, 1, record.finalizer, record.lease_until)
    assert not job.rows.is_finalizing(leader, 2, record.finalizer, record.lease_until)
    job.pass_time(600)
    job.rows.take_over(leader, "two", 60.0)
    assert not job.rows.is_finalizing(leader, 1, record.finalizer, record.lease_until)
    job.lead()
    with pytest.raises(StaleAttemptError):
        job.rows.is_finalizing(leader, 1, record.finalizer, record.lease_until)


@pytest.mark.parametrize("seconds", [0.0, -1.0, timedelta(days=400).total_seconds()])
def test_times_out_of_range_are_refused(job: AlignedJob, seconds: float) -> None:
    leader = job.lead()
    with pytest.raises(InvalidConfigurationError, match="lease_seconds"):
        job.rows.take_over(leader, "one", seconds)
    with pytest.raises(InvalidConfigurationError, match="timeout_seconds"):
        job.rows.begin(beginning(job, timeout_seconds=seconds))


def test_a_leader_resigns_once_and_a_replaced_one_not_at_all(job: AlignedJob) -> None:
    replaced, leader = job.lead(), job.lead()
    for each in (replaced, leader, leader):
        job.rows.resign(each)
    statuses = [attempt.status for attempt in job.jobs.describe(JOB).attempts]
    assert statuses == [AttemptStatus.FENCED, AttemptStatus.FINISHED]
    with pytest.raises(StaleAttemptError):
        job.coordinator()


def test_a_repeated_key_is_the_same_leader_until_it_is_replaced(job: AlignedJob) -> None:
    message = make_leadership(storage_base=job.storage.base_uri)
    assert job.rows.lead(message) == job.rows.lead(message)
    job.lead()
    with pytest.raises(StaleAttemptError):
        job.rows.lead(message)


def test_a_directory_of_checkpoints_is_a_uri(job: AlignedJob) -> None:
    with pytest.raises(InvalidConfigurationError, match="storage_base"):
        job.rows.lead(make_leadership(storage_base="checkpoints"))
