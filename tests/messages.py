"""Factories of the messages of a stage and of what they name, and a clock with a manually set time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.aligned.rows import TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AttemptRef,
    PendingCheckpoint,
    RegisterAttempt,
    RequestSavepoint,
    RestoreSource,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, OperatorRecord
from airflow_provider_statecheck.gateway.verbs import StageGateway
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import find_source

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """Return a value that is not missing."""
    assert value is not None
    return value


def make_owner(**changes: Any) -> AttemptOwner:
    """
    Return the owner of an attempt.

    The task instance that ``airflow`` names in part has the coordinates of the others.
    """
    values: dict[str, Any] = {
        "logical_task": "dag/task",
        "run_key": "2026-01-01",
        "run_id": "scheduled__2026-01-01",
        "clear_marker": "3/0",
        "label": "dag.task",
    }
    values |= changes
    if values.get("airflow"):
        known = {"dag_id": "dag", "run_id": values["run_id"], "task_id": "task", "map_index": "-1"}
        values["airflow"] = tuple((known | dict(values["airflow"])).items())
    return AttemptOwner(**values)


def make_registration(**changes: Any) -> RegisterAttempt:
    """Return a registration with a new attempt key."""
    values: dict[str, Any] = {
        "job_name": "sales",
        "uid": "aggregate",
        "attempt_key": new_key(),
        "owner": make_owner(),
        "storage_base": "memory://base",
        # Suites register operators that are in no Dag.
        "allow_non_restored_state": True,
    }
    return RegisterAttempt(**values | changes)


def make_leadership(**changes: Any) -> TakeLeadership:
    """Return a message that takes the leadership with a new key."""
    values: dict[str, Any] = {
        "job_name": "sales",
        "attempt_key": new_key(),
        "owner": make_owner(),
        "storage_base": "memory://base",
    }
    return TakeLeadership(**values | changes)


def make_savepoint_request(of: AttemptRef | OperatorRecord, **changes: Any) -> RequestSavepoint:
    """Return a request with a new key for a savepoint of an operator, also as one of its attempts names it."""
    values = {"job_id": of.job_id, "operator_id": of.operator_id, "request_key": new_key()}
    return RequestSavepoint(**values | changes)


def source_at(storage: CheckpointStorage, pointer: str, uid: str = "aggregate", **changes: Any) -> Any:
    """Return a savepoint or checkpoint as an attempt of an operator begins from it, without a claim."""
    values: dict[str, Any] = {"mode": RestoreMode.NO_CLAIM, "renamed_uids": {}, "allow_non_restored_state": False}
    return find_source(storage, pointer, uid=uid, **values | changes)


def make_acknowledgement(
    attempt: AttemptRef, checkpoint: int | PendingCheckpoint, **changes: Any
) -> AcknowledgeCheckpoint:
    """Return an acknowledgement of a checkpoint; for an id, its location is below ``memory://base``."""
    if isinstance(checkpoint, PendingCheckpoint):
        checkpoint_id, location = checkpoint.checkpoint_id, checkpoint.location
    else:
        checkpoint_id, location = checkpoint, f"memory://base/{attempt.job_id}/chk-{checkpoint}"
    values: dict[str, Any] = {
        "attempt": attempt,
        "checkpoint_id": checkpoint_id,
        "metadata_uri": f"{location}/_metadata",
        "metadata_size": 100,
        "metadata_sha256": "0" * 64,
        "counts": {"snapshots": 1},
    }
    return AcknowledgeCheckpoint(**values | changes)


def complete_checkpoint(gateway: StageGateway, attempt: AttemptRef, **changes: Any) -> AcknowledgeReply:
    """Trigger and acknowledge one checkpoint."""
    pending = gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    return gateway.acknowledge(make_acknowledgement(attempt, pending, **changes))


def make_source(pointer: str, **changes: Any) -> RestoreSource:
    """Return the snapshot at a pointer as a stage has read it."""
    values: dict[str, Any] = {"metadata_uri": f"{pointer}/_metadata", "metadata_size": 10, "metadata_sha256": "a" * 64}
    return RestoreSource(pointer=pointer, **values | changes)


class ManualClock:
    """
    Clock that changes only when a test advances it.

    :param start: The initial time, by default 2026-01-01 in UTC.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the current time of the clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back with a negative number of seconds."""
        self._now += timedelta(seconds=seconds)
