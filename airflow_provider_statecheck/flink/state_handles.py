"""
State handles of completed checkpoints, and the checkpoint ids of a job, as in Flink.

The row of a completed checkpoint is its handle: the URI, size and checksum of ``_metadata``. The epoch of the leader
fences changes, so handles need no locks. Removing a handle marks its row as subsumed, and the files are deleted
afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedStorage,
    CompletedCheckpoint,
    completed_of,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.aligned.rows import Handles
from airflow_provider_statecheck.checkpoint.aligned.steps import complete, repeated
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    HandleNotFoundError,
    InvalidConfigurationError,
    StaleAttemptError,
)

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
        """Whether the handle exists."""
        return self.value >= 0


@dataclass(frozen=True, slots=True)
class RetrievableStateHandle:
    """Row of a completed checkpoint, with the storage that resolves its pointer."""

    record: CheckpointRecord
    storage: AlignedStorage

    @property
    def pointer(self) -> FileStateHandle:
        """The pointer to the metadata."""
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

    :param leader: Attempt of the operator that changes handles.
    """

    def __init__(self, rows: AlignedCheckpoints, leader: AttemptRef, storage: AlignedStorage) -> None:
        self._rows = rows
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
        record = self._put(state)
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
        if not version.is_existing:
            raise HandleNotFoundError(
                f"Expected the version of a state handle {name!r}, found that of none; add it first."
            )
        self._put(state, version)

    def exists(self, name: str) -> ResourceVersion:
        """Return the version of a handle; a handle that is removed does not exist."""
        try:
            return ResourceVersion(self.get_and_lock(name).record.epoch)
        except HandleNotFoundError:
            return ResourceVersion.not_existing()

    def get_and_lock(self, name: str) -> RetrievableStateHandle:
        """
        Return a handle.

        :raises HandleNotFoundError: if the handle does not exist.
        """
        checkpoint_id = _id_of(name)
        for record in self._handles().live:
            if record.checkpoint_id == checkpoint_id:
                return RetrievableStateHandle(record, self._storage)
        raise HandleNotFoundError(
            f"Expected a state handle {name!r}, found none or one that was removed; add it first."
        )

    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle, str]]:
        """Return all handles with their names, oldest first, read in one transaction."""
        live = self._handles().live
        return [(RetrievableStateHandle(record, self._storage), handle_name(record.checkpoint_id)) for record in live]

    def get_all_handles(self) -> list[str]:
        """Return all names, including those of removed handles whose files await deletion."""
        found = self._handles()
        return [handle_name(i) for i in sorted({*(c.checkpoint_id for c in found.live), *found.removed})]

    def release_and_try_remove(self, name: str) -> bool:
        """
        Remove a handle, whose files are then to be deleted.

        :return: Whether the handle is removed; ``False`` if a newer leader has registered.
        """
        try:
            repeated(partial(self._rows.remove_handle, self._leader, _id_of(name)))
        except StaleAttemptError:
            return False
        return True

    def clear_entries(self, status: JobStatus | None = None) -> tuple[CheckpointRecord, ...]:
        """
        Remove all handles, and leave files to the user.

        :param status: Terminal status of the job, with which the properties of the checkpoints decide what the user
            keeps; ``None`` to leave all files to the user.
        :return: The checkpoints that are left to the user.
        :raises StaleAttemptError: if a newer leader has registered.
        """
        return repeated(partial(self._rows.end_handles, self._leader, status, new_key()))

    def release(self, name: str) -> None:
        """Do nothing: handles have no locks."""

    def release_all(self) -> None:
        """Do nothing: handles have no locks."""

    def _put(self, state: CompletedCheckpoint, version: ResourceVersion | None = None) -> CheckpointRecord:
        return complete(self._rows, self._leader, state, None if version is None else version.value)

    def _handles(self) -> Handles:
        return self._rows.handles(self._leader)


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


class CheckpointIDCounter:
    """
    Counter of checkpoint ids in the row of a job, starting at 1, which also counts the checkpoints of its stages.

    Each id is returned once, across all processes. If the counter raises, no checkpoint is triggered.
    """

    def __init__(self, rows: AlignedCheckpoints, leader: AttemptRef) -> None:
        self._rows = rows
        self._leader = leader
        self._is_started = False
        self._is_shut_down = False
        self._has_drawn = False

    def start(self) -> None:
        """
        Start the counter; a second call has no effect.

        :raises CoordinatorError: if called after the shutdown.
        :raises CheckpointNotFoundError: if the job does not exist.
        """
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        self._count()
        self._is_started = True

    def get_and_increment(self) -> int:
        """
        Return the next id.

        :raises CoordinatorError: if called before the start or after the shutdown.
        """
        self._require_in_use()
        self._has_drawn = True
        return self._count(draws=True)

    def get(self) -> int:
        """
        Return the next id without drawing it.

        :raises CoordinatorError: if called before the start or after the shutdown.
        """
        self._require_in_use()
        return self._count()

    def set_count(self, count: int) -> None:
        """
        Set the next id, as the restore of a savepoint does.

        Before the first draw, a number below the next id has no effect: ids are never repeated.

        :param count: The next id, at least 1.
        :raises CoordinatorError: if the number is below the next id after the first draw, before the start, or after
            the shutdown.
        :raises InvalidConfigurationError: if the number is below 1.
        """
        self._require_in_use()
        if count < 1:
            raise InvalidConfigurationError(f"Expected the next checkpoint id to be at least 1, found {count}.")
        following = self._count(at_least=count)
        if count < following and self._has_drawn:
            raise CoordinatorError(
                f"Expected the next checkpoint id to be {following} or more once a checkpoint was triggered, found "
                f"{count}; set it before the first trigger."
            )

    def shutdown(self, status: JobStatus) -> None:
        """
        Stop the counter; a second call has no effect.

        The count remains with any status of the job: ids are never repeated.
        """
        self._is_shut_down = True

    def _count(self, at_least: int = 1, *, draws: bool = False) -> int:
        return self._rows.count_ids(self._leader, at_least, draws=draws)

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        if not self._is_started:
            raise _not_in_use("it was not started; call start() first")


def _not_in_use(why: str) -> CoordinatorError:
    return CoordinatorError(f"Expected a counter of checkpoint ids that is in use, found that {why}.")
