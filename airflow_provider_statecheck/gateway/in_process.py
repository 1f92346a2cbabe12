"""
Gateway to a coordinator in the caller's process, and observers of the changes that it commits.

The stores are imported at the first use, so drivers that use the HTTP gateway do not need SQLAlchemy.

Observers are notified of changes of jobs, attempts and checkpoints at most once. If the outcome of a commit is unknown,
the repeated call finds the change done and does not notify.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.declared_uids import DagDirectory
from airflow_provider_statecheck.checkpoint.fencing import TaskLiveness
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
)
from airflow_provider_statecheck.checkpoint.store import FirstRead, JobStore, JobTransaction
from airflow_provider_statecheck.gateway.verbs import StageGateway, retrying

_STORES = "airflow_provider_statecheck.metadata.sql_store"
_ENGINES = "airflow_provider_statecheck.metadata.unit_of_work"


def open_gateway(metadata: str) -> StageGateway:
    """
    Open a coordinator on a separate database, and create missing tables.

    :param metadata: SQLAlchemy URL such as ``sqlite:///state.db``.
    """
    return gateway_on_engine(importlib.import_module(_ENGINES).open_engine(metadata))


def gateway_on_engine(
    engine: Any,
    liveness: TaskLiveness | None = None,
    observer: CoordinatorObserver | None = None,
    dags: DagDirectory | None = None,
) -> StageGateway:
    """
    Return a coordinator on a database that already has the tables.

    :param engine: SQLAlchemy engine.
    :param liveness: Liveness of the tasks of other attempts; unknown by default.
    :param observer: Observer of all committed changes.
    :param dags: Lookup of the tasks of other Dags; unknown by default.
    """
    store = cast("JobStore", importlib.import_module(_STORES).SqlJobStore(engine))
    observed = store if observer is None else observed_store(store, observer)
    return retrying(AttemptCoordinator(observed, liveness, dags))


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


def observed_store(store: JobStore, *observers: CoordinatorObserver) -> JobStore:
    """
    Return a job store that notifies observers about the changes of each transaction.

    :param observers: Observers to notify, in this order.
    """
    return cast("JobStore", _ObservedStore(store, observers))


class _ObservedStore:
    """Job store that observes the transactions of another one, and delegates all other calls to it."""

    def __init__(self, store: JobStore, observers: tuple[CoordinatorObserver, ...]) -> None:
        self._store = store
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(
        self, job_id: JobId, *, create_as: str | None = None, reads: FirstRead | None = None
    ) -> Iterator[_ObservedTransaction]:
        with self._store.transaction(job_id, create_as=create_as, reads=reads) as tx:
            observed = _ObservedTransaction(tx)
            yield observed
            job = tx.job
        for change in observed.changes:
            for observer in self._observers:
                observer.changed(job, change)


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
        # The job that took an adopted checkpoint has already reported it.
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
