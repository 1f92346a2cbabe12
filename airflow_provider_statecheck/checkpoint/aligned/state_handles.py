"""
State handles of completed checkpoints: Flink's ``StateHandleStore``.

The row of a completed checkpoint is its handle: the URI, size and checksum of ``_metadata``. The epoch of the leader fences
changes, so handles need no locks. Removing a handle marks its row as subsumed, and the files are deleted afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import (
    SnapshotStorage,
    StatePointer,
    completed_of,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    HandleExistsError,
    HandleNotFoundError,
    InvalidConfigurationError,
    ResourceVersionError,
    StaleAttemptError,
)

Result = TypeVar("Result")
_DIGITS = 19
_NAME = re.compile(rf"chk-(\d{{{_DIGITS}}})")


def handle_name(checkpoint_id: int) -> str:
    """Return the name of a checkpoint's handle; names sort in the order of ids."""
    return f"chk-{checkpoint_id:0{_DIGITS}d}"


@dataclass(frozen=True, slots=True, order=True)
class ResourceVersion:
    """Version of a handle, which is the epoch that completed the checkpoint; -1 for a missing handle."""

    value: int

    @staticmethod
    def not_existing() -> ResourceVersion:
        """Return the version of a missing handle."""
        return ResourceVersion(-1)

    @property
    def is_existing(self) -> bool:
        """Return whether the handle exists."""
        return self.value >= 0


@dataclass(frozen=True, slots=True)
class RetrievableStateHandle:
    """Row of a completed checkpoint, with the storage that resolves its pointer."""

    record: CheckpointRecord
    storage: SnapshotStorage

    @property
    def pointer(self) -> StatePointer:
        """Return the pointer to the metadata."""
        return metadata_of(self.record)

    def retrieve_state(self) -> CompletedCheckpoint:
        """
        Read the metadata and return the checkpoint.

        :raises CorruptStateError: if the metadata was changed after it was written.
        :raises CheckpointNotFoundError: if the metadata is missing.
        """
        return completed_of(self.record, self.storage.read(self.pointer), self.pointer)

    def discard_state(self) -> None:
        """Delete the metadata, without which no restore reads the checkpoint; a repeated call has no effect."""
        self.storage.delete_manifest(self.pointer.uri)

    def get_state_size(self) -> int:
        """Return the size of the metadata in bytes."""
        return self.pointer.size


class StateHandleStore:
    """
    Handles in the rows of the checkpoints of one operator.

    Only the newest leader may change handles. All operations may raise a ``CoordinatorError`` for the database.

    :param jobs: Store of the job's rows.
    :param leader: Attempt of the operator that changes handles.
    :param storage: Storage of the metadata.
    """

    def __init__(self, jobs: JobStore, leader: AttemptRef, storage: SnapshotStorage) -> None:
        self._jobs = jobs
        self._leader = leader
        self._storage = storage

    def add_and_lock(self, name: str, state: CompletedCheckpoint) -> RetrievableStateHandle:
        """
        Add the handle of a checkpoint whose metadata is on storage; adding it again has no effect.

        :raises HandleExistsError: if another checkpoint has the name, or had it before.
        :raises StaleAttemptError: if a newer leader has registered.
        :raises CommitStateUnknownError: if it is unknown whether the handle was added.
        :raises InvalidConfigurationError: for a name of another checkpoint.
        """
        _require_name_of(name, state)
        record = self._change(lambda tx, leader: _added(tx, leader, state))
        return RetrievableStateHandle(record, self._storage)

    def replace(self, name: str, version: ResourceVersion, state: CompletedCheckpoint) -> None:
        """
        Replace the properties of a checkpoint; its files are never replaced.

        :raises HandleNotFoundError: if the name has no handle.
        :raises ResourceVersionError: if the handle has another version.
        :raises HandleExistsError: if the state is that of another metadata file.
        :raises StaleAttemptError: if a newer leader has registered.
        :raises CommitStateUnknownError: if it is unknown whether the handle was replaced.
        """
        _require_name_of(name, state)
        self._change(lambda tx, _: self._replace(tx, name, version, state))

    def exists(self, name: str) -> ResourceVersion:
        """Return the version of a handle; a handle that is removed does not exist."""
        with self._transaction() as tx:
            found = self._live(tx).get(_id_of(name))
        return ResourceVersion.not_existing() if found is None else ResourceVersion(found.epoch)

    def get_and_lock(self, name: str) -> RetrievableStateHandle:
        """
        Return a handle.

        :raises HandleNotFoundError: if the handle does not exist.
        """
        with self._transaction() as tx:
            return RetrievableStateHandle(_require(self._live(tx).get(_id_of(name)), name), self._storage)

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle, str]]:
        """Return all handles with their names, oldest first, read in one transaction."""
        with self._transaction() as tx:
            live = self._live(tx)
        return [(RetrievableStateHandle(record, self._storage), handle_name(i)) for i, record in live.items()]

    def get_all_handles(self) -> list[str]:
        """Return all names, including those of removed handles whose files await deletion."""
        with self._transaction() as tx:
            live = self._live(tx)
            rows = tx.open_checkpoints(self._leader.operator_id)
        removed = {c.checkpoint_id for c in rows if c.status is CheckpointStatus.SUBSUMED and c.awaits_discard}
        return [handle_name(checkpoint_id) for checkpoint_id in sorted(live.keys() | removed)]

    def release_and_try_remove(self, name: str) -> bool:
        """
        Remove a handle, whose files are then to be deleted.

        :return: Whether the handle is removed; ``False`` if a newer leader has registered.
        """
        checkpoint_id = _id_of(name)

        def change(tx: JobTransaction, _: AttemptRecord) -> None:
            found = self._live(tx).get(checkpoint_id)
            if found is not None:
                transitions.roll_back(tx, [found])

        try:
            self._change(change)
        except StaleAttemptError:
            return False
        return True

    def subsume(self, num_retained: int) -> list[int]:
        """
        Remove the handles of the checkpoints beyond retention, in one transaction.

        :param num_retained: Number of checkpoints to retain, at least 1.
        :return: The ids of the remaining checkpoints, oldest first.
        :raises StaleAttemptError: if a newer leader has registered.
        """
        return self._change(lambda tx, _: self._subsume(tx, num_retained))

    def clear_entries(self) -> None:
        """
        Remove all handles and leave their files to the user.

        :raises StaleAttemptError: if a newer leader has registered.
        """
        self._change(lambda tx, leader: self._end(tx, leader, None))

    def end(self, status: JobStatus) -> list[CheckpointRecord]:
        """
        Remove all handles at the end of the job; the properties of the checkpoints decide which files the user keeps.

        :param status: Terminal status of the job.
        :return: The checkpoints that are left to the user.
        :raises StaleAttemptError: if a newer leader has registered.
        """
        return self._change(lambda tx, leader: self._end(tx, leader, status))

    def release(self, name: str) -> None:
        """Do nothing: handles have no locks."""

    def release_all(self) -> None:
        """Do nothing: handles have no locks."""

    def _transaction(self) -> AbstractContextManager[JobTransaction]:
        return self._jobs.transaction(self._leader.job_id)

    def _live(self, tx: JobTransaction) -> dict[int, CheckpointRecord]:
        operator = tx.operator(self._leader.operator_id)
        if operator is None:
            return {}
        return {c.checkpoint_id: c for c in reversed(transitions.restorable(tx, operator))}

    def _subsume(self, tx: JobTransaction, num_retained: int) -> list[int]:
        transitions.subsume(tx, self._leader.operator_id, num_retained, retained_runs=0)
        return list(self._live(tx))

    def _end(self, tx: JobTransaction, leader: AttemptRecord, status: JobStatus | None) -> list[CheckpointRecord]:
        ended = list(self._live(tx).values())
        kept = [c for c in ended if status is None or not c.properties.discard_on(status)]
        transitions.roll_back(tx, [c for c in ended if c not in kept])
        for record in kept:
            owned = replace(record, properties=replace(record.properties, discard_on_subsumed=False))
            tx.update_checkpoint(owned, expected=CheckpointStatus.COMPLETED)
        operator = tx.operator(leader.operator_id)
        generation = leader.generation
        if operator is not None and kept:
            # The next generation starts without the checkpoints of this one.
            generation = operator.generation + 1
            tx.save_operator(replace(operator, generation=generation))
        tx.save_attempt(replace(leader, generation=generation, restored_from=None))
        return kept

    def _replace(self, tx: JobTransaction, name: str, version: ResourceVersion, state: CompletedCheckpoint) -> None:
        found = _require(self._live(tx).get(state.checkpoint_id), name)
        if found.epoch != version.value:
            raise ResourceVersionError(
                f"Expected version {version.value} of the state handle {name!r}, found {found.epoch}; read it again."
            )
        if not _is_same(found, state):
            raise _exists(name, found)
        tx.update_checkpoint(replace(found, properties=state.properties), expected=CheckpointStatus.COMPLETED)

    def _change(self, change: Callable[[JobTransaction, AttemptRecord], Result]) -> Result:
        """Run an idempotent change as the leader, and repeat it once if the outcome of its commit is unknown."""
        try:
            return self._once(change)
        except CommitStateUnknownError:
            # The first write of a transaction waits for a commit that is still in progress.
            return self._once(change)

    def _once(self, change: Callable[[JobTransaction, AttemptRecord], Result]) -> Result:
        with self._transaction() as tx:
            return change(tx, require_running(tx, self._leader))


def _added(tx: JobTransaction, leader: AttemptRecord, state: CompletedCheckpoint) -> CheckpointRecord:
    found = tx.checkpoint(state.checkpoint_id)
    if found is None:
        record = _adopted(tx, leader, state)
        tx.add_checkpoint(record)
        return record
    if found.status is CheckpointStatus.FINALIZING:
        return transitions.complete(tx, found, _completed(found, state))
    if not _is_same(found, state) or found.status is not CheckpointStatus.COMPLETED:
        raise _exists(handle_name(state.checkpoint_id), found)
    return found


def _completed(finalizing: CheckpointRecord, state: CompletedCheckpoint) -> CheckpointRecord:
    return replace(
        finalizing,
        status=CheckpointStatus.COMPLETED,
        finalizer=None,
        lease_until=None,
        completed_at=state.completed_at,
        metadata_uri=state.metadata_uri,
        metadata_size=state.metadata_size,
        metadata_sha256=state.metadata_sha256,
        state_size_bytes=state.checkpointed_size,
        full_size_bytes=state.state_size,
        counts={"operators": sum(each.has_state for each in state.operator_states.values())},
    )


def _adopted(tx: JobTransaction, leader: AttemptRecord, state: CompletedCheckpoint) -> CheckpointRecord:
    pending = CheckpointRecord(
        job_id=leader.job_id,
        checkpoint_id=state.checkpoint_id,
        operator_id=leader.operator_id,
        epoch=leader.epoch,
        generation=leader.generation,
        status=CheckpointStatus.FINALIZING,
        request_key=new_key(),
        location=state.external_pointer,
        triggered_at=tx.now,
        expires_at=tx.now,
        properties=state.properties,
    )
    # The clock that timed the snapshot may be ahead of the job's.
    return replace(_completed(pending, state), completed_at=tx.now)


def _is_same(found: CheckpointRecord, state: CompletedCheckpoint) -> bool:
    return (found.metadata_uri, found.metadata_size, found.metadata_sha256) == (
        state.metadata_uri,
        state.metadata_size,
        state.metadata_sha256,
    )


def _require(found: CheckpointRecord | None, name: str) -> CheckpointRecord:
    if found is None:
        raise HandleNotFoundError(
            f"Expected a state handle {name!r}, found none or one that was removed; add it first."
        )
    return found


def _exists(name: str, found: CheckpointRecord) -> HandleExistsError:
    return HandleExistsError(
        f"Expected no other checkpoint under the state handle {name!r}, found one that is {found.status.value} with the "
        f"metadata {found.metadata_uri}; ids are never used twice, so draw another one."
    )


def _require_name_of(name: str, state: CompletedCheckpoint | None) -> None:
    if state is None or _id_of(name) != state.checkpoint_id:
        found = "none" if state is None else f"checkpoint {state.checkpoint_id}"
        raise InvalidConfigurationError(f"Expected the checkpoint of the state handle {name!r}, found {found}.")


def _id_of(name: str) -> int:
    match = _NAME.fullmatch(str(name))
    if match is None:
        raise InvalidConfigurationError(
            f"Expected the name of a state handle to be chk- and {_DIGITS} digits, found {name!r}; use handle_name()."
        )
    return int(match.group(1))
