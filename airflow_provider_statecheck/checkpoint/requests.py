"""What somebody asked for and the job has still to do: the queue of a coordinator, kept as rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties


class RequestStatus(StrEnum):
    """The life of a request; it ends exactly once."""

    QUEUED = "queued"
    RUNNING = "running"
    """Its checkpoint was triggered."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Tell whether it has not ended."""
        return self in (RequestStatus.QUEUED, RequestStatus.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Somebody wants a checkpoint or savepoint of an operator; whoever can take it does."""

    job_id: JobId
    request_key: str
    """Made by the client; the same key is the same request."""
    operator_id: OperatorId
    properties: CheckpointProperties
    target: str | None = None
    """Directory below which a savepoint is to be written; ``None`` for the configured one."""
    is_periodic: bool = False
    requested_by: str = ""
    """For people."""
    requested_at: datetime
    status: RequestStatus = RequestStatus.QUEUED
    checkpoint_id: int | None = None
    """The checkpoint that was triggered for it."""
    ended_at: datetime | None = None
    failure_reason: str | None = None
    failure_message: str = ""
