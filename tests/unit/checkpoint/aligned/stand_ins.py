"""Tasks and requests that the tests of the coordinator's parts are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus
from airflow_provider_statecheck.checkpoint.ids import OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import SnapshotRequest

START = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@dataclass
class RecordingTask:
    """A task that notes what it is told, and fails when it is told what it was made to fail at."""

    uid: str
    status: ExecutionStatus = ExecutionStatus.RUNNING
    attempt_id: str = "1"
    name: str = ""
    parallelism: int = 2
    max_parallelism: int = 128
    fails_at: frozenset[str] = frozenset()
    told: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def operator_id(self) -> OperatorId:
        return operator_id_of(self.uid)

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: object) -> None:
        self._hear("trigger", checkpoint_id, timestamp, options)

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        self._hear("complete", checkpoint_id, timestamp, last_subsumed_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        self._hear("aborted", checkpoint_id, latest_completed_id, timestamp)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self._hear("subsumed", checkpoint_id)

    def _hear(self, what: str, *facts: Any) -> None:
        self.told.append((what, *facts))
        if what in self.fails_at:
            raise RuntimeError(f"task cannot take {what}")


def make_request(
    key: str,
    *,
    properties: CheckpointProperties | None = None,
    is_periodic: bool = False,
    age: float = 0,
    **fields: Any,
) -> SnapshotRequest:
    """Make a request that was made so many seconds before ``START``."""
    return SnapshotRequest(
        job_id=job_id_of("sales"),
        request_key=key,
        operator_id=operator_id_of("(aligned)"),
        properties=properties or CheckpointProperties(),
        is_periodic=is_periodic,
        requested_at=START - seconds(age),
        **fields,
    )
