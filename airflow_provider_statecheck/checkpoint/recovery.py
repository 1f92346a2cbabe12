"""
Rows made anew after the database was lost, from what was found on storage.

A job comes back as one whose attempts have all ended: the next attempt restores and has a higher epoch than any that wrote.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.claims import ClaimRecord
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.checkpoint.validation import HIGHEST_ID, require
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError

log = logging.getLogger(__name__)

RECOVERED = "recovered"
"""Who the attempts of a recovered job belong to."""
_NUM_RETAINED = 2
_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSnapshot:
    """A checkpoint or savepoint that is on storage and can be restored."""

    checkpoint_id: int
    uid: str
    epoch: int
    generation: int
    properties: CheckpointProperties
    location: str
    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    full_size_bytes: int
    counts: dict[str, int] = field(default_factory=dict)
    request_key: str = ""
    """The key of the message that triggered it; empty where it is not known."""
    has_commit: bool = False
    """Whether it holds what a sink commits; nobody knows any more whether it did, so that it is committed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverJob:
    """What is known of a job without its rows."""

    job_id: JobId
    name: str
    storage_base: str
    highest_epoch: int
    """Of any attempt that wrote."""
    highest_checkpoint_id: int
    """Of any checkpoint or savepoint, usable or not."""
    generations: dict[str, int]
    """The newest generation of each operator by its uid, usable or not."""
    snapshots: tuple[RecoveredSnapshot, ...]
    claimed: tuple[tuple[str, str], ...] = ()
    """Savepoints whose files are in use by an operator: the directory and the uid."""


class JobRecovery:
    """
    Makes rows anew; never changes one that is there.

    :param store: The rows.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def is_known(self, job_id: JobId) -> bool:
        """Tell whether a job has rows."""
        try:
            self._store.describe(job_id)
        except CheckpointNotFoundError:
            return False
        return True

    def recover(self, request: RecoverJob) -> None:
        """
        Make the rows of a job in one transaction.

        :raises InvalidConfigurationError: if the job has rows, or an id is out of range.
        """
        require("checkpoint id", request.highest_checkpoint_id, lambda i: 0 <= i <= HIGHEST_ID, f"up to {HIGHEST_ID}")
        with self._store.transaction(request.job_id, create_as=request.name) as tx:
            if tx.view().attempts:
                raise InvalidConfigurationError(
                    f"Expected job {request.name!r} to have no rows, found some; they are kept as they are."
                )
            while tx.job.next_checkpoint_id <= request.highest_checkpoint_id:
                tx.draw_checkpoint_id()
            for uid in request.generations:
                _add_operator(tx, request, uid)
            for snapshot in request.snapshots:
                tx.add_checkpoint(_row(tx, request.job_id, snapshot))
            for pointer, uid in request.claimed:
                _claim(tx, pointer, operator_id_of(uid))
        log.info("Job %s recovered with %s checkpoints", request.name, len(request.snapshots))


def _add_operator(tx: JobTransaction, request: RecoverJob, uid: str) -> None:
    operator_id = operator_id_of(uid)
    # A job that was removed keeps its counts.
    kept = tx.operator(operator_id)
    epoch = max(1, request.highest_epoch, kept.epoch if kept else 0)
    generation = _generation(request, uid)
    operator = OperatorRecord(
        job_id=request.job_id, operator_id=operator_id, uid=uid, epoch=epoch, generation=generation
    )
    tx.save_operator(operator)
    tx.save_attempt(_ended_attempt(tx, operator, request.storage_base))


def _generation(request: RecoverJob, uid: str) -> int:
    newest = request.generations[uid]
    usable = {s.generation for s in request.snapshots if s.uid == uid and not s.properties.is_savepoint}
    # With nothing to restore the next attempt starts afresh, as the report says; in the old one it could only fail.
    return max(usable) if usable else newest + 1


def _ended_attempt(tx: JobTransaction, operator: OperatorRecord, storage_base: str) -> AttemptRecord:
    owner = AttemptOwner(
        logical_task=RECOVERED, run_key=RECOVERED, run_id=RECOVERED, clear_marker=RECOVERED, label=RECOVERED
    )
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=new_key(),
        generation=operator.generation,
        status=AttemptStatus.FAILED,
        owner=owner,
        start_reason="recovered from storage",
        restored_from=None,
        storage_base=storage_base,
        num_retained=_NUM_RETAINED,
        checkpoint_timeout_seconds=_TIMEOUT.total_seconds(),
        registered_at=tx.now,
        ended_at=tx.now,
        message="the database was lost",
    )


def _row(tx: JobTransaction, job_id: JobId, found: RecoveredSnapshot) -> CheckpointRecord:
    return CheckpointRecord(
        job_id=job_id,
        checkpoint_id=found.checkpoint_id,
        operator_id=operator_id_of(found.uid),
        epoch=found.epoch,
        generation=found.generation,
        status=CheckpointStatus.COMPLETED,
        request_key=found.request_key or new_key(),
        location=found.location,
        triggered_at=tx.now,
        expires_at=tx.now,
        completed_at=tx.now,
        properties=found.properties,
        metadata_uri=found.metadata_uri,
        metadata_size=found.metadata_size,
        metadata_sha256=found.metadata_sha256,
        full_size_bytes=found.full_size_bytes,
        counts=dict(found.counts),
        has_open_commit=found.has_commit,
    )


def _claim(tx: JobTransaction, pointer: str, operator_id: OperatorId) -> None:
    if tx.claim(pointer) is None:
        tx.save_claim(ClaimRecord(pointer=pointer, job_id=tx.job.job_id, operator_id=operator_id, claimed_at=tx.now))
