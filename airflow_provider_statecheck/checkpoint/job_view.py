"""What the store keeps of one job, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.layout import job_uri
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord
from airflow_provider_statecheck.checkpoint.validation import require

RECENT = 100
"""How many of the newest checkpoints and requests a view holds whatever became of them."""
LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """
    Which checkpoints of a job to list, newest first.

    :raises InvalidConfigurationError: for a number out of range.
    """

    before: int | None = None
    """Only those with a lower id, such as the last one of the page before; ``None`` for the newest."""
    limit: int = RECENT
    operator_id: OperatorId | None = None
    status: CheckpointStatus | None = None

    def __post_init__(self) -> None:
        require("before", self.before, lambda i: i is None or 0 < i <= _HIGHEST_ID, "a checkpoint id, 1 or more")
        require("limit", self.limit, lambda n: 1 <= n <= LARGEST_PAGE, f"from 1 to {LARGEST_PAGE}")

    def includes(self, checkpoint: CheckpointRecord) -> bool:
        """Tell whether a checkpoint may be on the page."""
        return (
            (self.before is None or checkpoint.checkpoint_id < self.before)
            and self.operator_id in (None, checkpoint.operator_id)
            and self.status in (None, checkpoint.status)
        )


_HIGHEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """
    One job with its operators, attempts and checkpoints, each in the order they came.

    Its size does not grow with the history of checkpoints: those whose bytes are confirmed to be gone are left out, as are
    requests that have ended, except for the :data:`RECENT` newest of each. A ``CheckpointPage`` lists the others.
    """

    job: JobRecord
    operators: tuple[OperatorRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    """All whose bytes may exist, and the newest of the others."""
    read_at: datetime
    """That moment by the store's clock, which is also the one of all other times here; never before ``job.seen_at``."""
    requests: tuple[SnapshotRequest, ...] = ()
    """All that have not ended, and the newest of the others."""
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

    def directories_of(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the directories that may hold what the checkpoints of an operator name, as the job's rows say."""
        rows = (c.location for c in self.of_operator(operator_id) if c.discarded_at is None)
        bases = (job_uri(a.storage_base, a.job_id) for a in self.attempts if a.operator_id == operator_id)
        return tuple(dict.fromkeys((*rows, *bases)))

    def current_attempt(self, operator: OperatorRecord) -> AttemptRecord | None:
        """Return the attempt that holds the operator's epoch."""
        mine = (a for a in self.attempts if (a.operator_id, a.epoch) == (operator.operator_id, operator.epoch))
        return next(mine, None)

    def has_open_attempt(self, operator: OperatorRecord) -> bool:
        """Tell whether the newest attempt of an operator has not said that it ended."""
        attempt = self.current_attempt(operator)
        return attempt is not None and attempt.status is AttemptStatus.RUNNING
