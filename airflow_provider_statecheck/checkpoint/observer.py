"""
Telling others what a transition changed, after it was committed.

A change whose commit was lost on the way is told at most once: the repeated call finds it done and tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobStore, JobTransaction, JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChange:
    """A checkpoint's row is new or changed."""

    before: CheckpointStatus | None
    """``None`` for a new one."""
    checkpoint: CheckpointRecord
    attempt: AttemptRecord | None
    """The attempt that took it."""
    last_completed_at: datetime | None = None
    """For a new one: when the operator's newest completed checkpoint was completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChange:
    """An attempt is new or has ended."""

    before: AttemptStatus | None
    """``None`` for a new one."""
    attempt: AttemptRecord


Change = CheckpointChange | AttemptChange


class CoordinatorObserver(Protocol):
    """Is told of changes, in their order."""

    def changed(self, job: JobRecord, change: Change) -> None:
        """Take notice; an error here is the observer's own and must not be raised."""
        ...


class ObservedJobStore:
    """
    A store that tells an observer what each transition changed.

    :param store: The store that does the work.
    :param observer: Who is told.
    """

    def __init__(self, store: JobStore, observer: CoordinatorObserver) -> None:
        self._store = store
        self._observer = observer

    @contextmanager
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[JobTransaction]:
        """Begin a transition of a job; what it changed is told after the commit."""
        with self._store.transaction(job_id, create_as=create_as) as tx:
            observed = _ObservedTransaction(tx)
            yield cast("JobTransaction", observed)
            job = tx.job
        for change in observed.changes:
            self._observer.changed(job, change)

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return who claimed a snapshot."""
        return self._store.claim(pointer)

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self._store.jobs()

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        return self._store.describe(job_id)

    def request(self, job_id: JobId, request_key: str) -> SnapshotRequest | None:
        """Return a request of a job by the key its client made."""
        return self._store.request(job_id, request_key)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job."""
        return self._store.checkpoint(job_id, checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._store.checkpoints(job_id, page)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the checkpoint that a restore of an operator would start from."""
        return self._store.latest(job_id, operator_id)


class _ObservedTransaction:
    """Notes what is written; everything else goes to the transaction itself."""

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
        # A snapshot that is adopted was taken by another job, and is counted there.
        if before is None or not before.is_adoption:
            self._note(expected, record)

    def _note(
        self, before: CheckpointStatus | None, record: CheckpointRecord, last_completed_at: datetime | None = None
    ) -> None:
        attempt = self._tx.attempt(record.operator_id, record.epoch)
        self.changes.append(
            CheckpointChange(before=before, checkpoint=record, attempt=attempt, last_completed_at=last_completed_at)
        )
