"""
Notification of observers about committed changes of jobs, attempts and checkpoints.

The delivery is at most once. If the outcome of a commit is unknown, the repeated call finds the change done and does not
notify.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobsPage
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    RowsVersion,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import (
    CheckpointPage,
    JobStore,
    JobTransaction,
    JobView,
    LatestCheckpoints,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChange:
    """New or changed row of a checkpoint."""

    before: CheckpointStatus | None
    """Status before the change; ``None`` for a new checkpoint."""
    checkpoint: CheckpointRecord
    attempt: AttemptRecord | None
    """Attempt that took the checkpoint."""
    last_completed_at: datetime | None = None
    """Completion time of the operator's previous checkpoint, for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChange:
    """New or ended attempt."""

    before: AttemptStatus | None
    """Status before the change; ``None`` for a new attempt."""
    attempt: AttemptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRemoval:
    """Removal of a job with all its attempts and checkpoints."""


Change = CheckpointChange | AttemptChange | JobRemoval


class CoordinatorObserver(Protocol):
    """Observer of committed changes, in the order of their transactions."""

    def changed(self, job: JobRecord, change: Change) -> None:
        """Handle a change without raising an error."""
        ...


class ObservedJobStore:
    """
    Job store that notifies observers about the changes of each transaction.

    :param store: Underlying store.
    :param observers: Observers to notify, in this order.
    """

    def __init__(self, store: JobStore, *observers: CoordinatorObserver) -> None:
        self._store = store
        self._observers = observers

    @contextmanager
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[JobTransaction]:
        """Begin a transaction on a job, and notify the observers after the commit."""
        with self._store.transaction(job_id, create_as=create_as) as tx:
            observed = _ObservedTransaction(tx)
            yield cast("JobTransaction", observed)
            job = tx.job
        for change in observed.changes:
            for observer in self._observers:
                observer.changed(job, change)

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return the claim of a snapshot of any job."""
        return self._store.claim(pointer)

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self._store.jobs()

    def dag_ids(self, *, beside: str | None = None) -> frozenset[str]:
        """Return the Dags with attempts in any job, or in any job with attempts of one Dag."""
        return self._store.dag_ids(beside=beside)

    def jobs_of_run(self, dag_id: str, run_id: str) -> tuple[JobId, ...]:
        """Return the jobs that the tasks of a Dag run have worked on, the most recently active first."""
        return self._store.jobs_of_run(dag_id, run_id)

    def job_overviews(self, page: JobsPage) -> JobList:
        """Return a page of the list of jobs."""
        return self._store.job_overviews(page)

    def describe(self, job_id: JobId) -> JobView:
        """Return a consistent view of a job."""
        return self._store.describe(job_id)

    def request(self, job_id: JobId, request_key: str) -> SnapshotRequest | None:
        """Return a request of a job by its key."""
        return self._store.request(job_id, request_key)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job."""
        return self._store.checkpoint(job_id, checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._store.checkpoints(job_id, page)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest restorable checkpoint of an operator, or ``None``."""
        return self._store.latest(job_id, operator_id)

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""
        return self._store.latest_checkpoints(job_id, known_version)


class _ObservedTransaction:
    """Transaction that records changes and delegates all calls to another transaction."""

    def __init__(self, tx: JobTransaction) -> None:
        self._tx = tx
        self.changes: list[Change] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def save_attempt(self, record: AttemptRecord) -> None:
        known = self._tx.attempt(record.operator_id, record.epoch)
        self._tx.save_attempt(record)
        before = None if known is None else known.status
        if before is not record.status:
            self.changes.append(AttemptChange(before=before, attempt=record))

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        completed = [c.completed_at for c in self._tx.open_checkpoints(record.operator_id) if c.is_restorable]
        self._tx.add_checkpoint(record)
        if not record.is_adoption:
            self._note(None, record, completed[-1] if completed else None)

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        before = self._tx.checkpoint(record.checkpoint_id)
        self._tx.update_checkpoint(record, expected=expected)
        # The job that took an adopted snapshot has already reported it.
        if before is None or not before.is_adoption:
            self._note(expected, record)

    def remove_job(self) -> None:
        self._tx.remove_job()
        self.changes.append(JobRemoval())

    def _note(
        self, before: CheckpointStatus | None, record: CheckpointRecord, last_completed_at: datetime | None = None
    ) -> None:
        attempt = self._tx.attempt(record.operator_id, record.epoch)
        self.changes.append(
            CheckpointChange(before=before, checkpoint=record, attempt=attempt, last_completed_at=last_completed_at)
        )
