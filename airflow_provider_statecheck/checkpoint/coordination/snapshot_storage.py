"""What the coordinator of aligned checkpoints needs of storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.operator_state import MasterState, OperatorState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file and what must be in it."""

    uri: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContent:
    """What a checkpoint, or the part of one operator, holds."""

    operator_states: tuple[OperatorState, ...] = ()
    master_states: tuple[MasterState, ...] = ()


class SnapshotStorage(Protocol):
    """
    Where checkpoints lie.

    Every write may be repeated: equal bytes under one name are success. Nothing is called while a transaction is open.
    """

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        ...

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Make the directories that all checkpoints have in common.

        :raises StorageError: if that fails.
        """
        ...

    def checkpoint_location(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint; nothing is made."""
        ...

    def new_savepoint_location(self, target: str | None) -> str:
        """
        Return a new name for the directory of a savepoint; nothing is made.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        """
        ...

    def initialize_location(self, location: str) -> None:
        """
        Make the directory of a checkpoint.

        :raises StorageError: if that fails.
        """
        ...

    def write_manifest(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the part of an operator into the directory of its checkpoint, under a name that follows from the bytes.

        :raises StorageError: if that fails.
        """
        ...

    def write_metadata(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the metadata of a checkpoint, whole or not at all.

        :raises StorageError: if that fails, or other bytes are there.
        """
        ...

    def read(self, file: StoredFile) -> SnapshotContent:
        """
        Return what is in a manifest or in the metadata.

        :raises CorruptStateError: if it was changed after it was written.
        :raises CheckpointNotFoundError: if it is missing.
        """
        ...

    def copy_state(self, checkpoint: CheckpointRecord, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Copy the files of some states into the directory of a checkpoint and return the states that name the copies.

        :raises StorageError: if that fails.
        :raises CheckpointNotFoundError: if one of them is missing.
        """
        ...

    def exists(self, uri: str) -> bool:
        """
        Tell whether a file or directory is there.

        :raises StorageError: if the storage does not answer.
        """
        ...

    def delete_manifest(self, uri: str) -> None:
        """
        Delete a manifest that no row names.

        :raises StorageError: if it may still be there.
        """
        ...

    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpoint:
        """
        Return the snapshot of any job that lies at a pointer.

        :raises InvalidConfigurationError: for an empty pointer.
        :raises CheckpointNotFoundError: if there is none.
        """
        ...
