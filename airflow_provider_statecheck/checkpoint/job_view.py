"""All that the store keeps of one job, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job with its operators, attempts and checkpoints, each in the order they came."""

    job: JobRecord
    operators: tuple[OperatorRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    read_at: datetime
    """That moment by the store's clock, which is also the one of all other times here; never before ``job.seen_at``."""
    requests: tuple[SnapshotRequest, ...] = ()
    statistics: tuple[StatisticsRecord, ...] = ()
    handle_uris: tuple[str, ...] | None = None
    """Where the state under handles lies; ``None`` where nobody knows, because a handle cannot be read."""

    def savepoints_asked_of(self, operator_id: OperatorId) -> tuple[SnapshotRequest, ...]:
        """Return the savepoints that an operator is asked for and nobody has begun."""
        mine = (r for r in self.requests if r.operator_id == operator_id and r.status is RequestStatus.QUEUED)
        return tuple(r for r in mine if r.properties.is_savepoint)

    def of_operator(self, operator_id: OperatorId) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of one operator, oldest first."""
        return tuple(c for c in self.checkpoints if c.operator_id == operator_id)

    def current_attempt(self, operator: OperatorRecord) -> AttemptRecord | None:
        """Return the attempt that holds the operator's epoch."""
        mine = (a for a in self.attempts if (a.operator_id, a.epoch) == (operator.operator_id, operator.epoch))
        return next(mine, None)

    def has_open_attempt(self, operator: OperatorRecord) -> bool:
        """Tell whether the newest attempt of an operator has not said that it ended."""
        attempt = self.current_attempt(operator)
        return attempt is not None and attempt.status is AttemptStatus.RUNNING
