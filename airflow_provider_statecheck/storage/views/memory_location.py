"""Places of checkpoints whose state travels in handles."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.location_reference import (
    DEFAULT_LOCATION,
    CheckpointStorageLocationReference,
)
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, CheckpointedStateScope
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointer import NOT_ADDRESSABLE
from airflow_provider_statecheck.storage.views.memory_stream import MemoryCheckpointOutputStream
from airflow_provider_statecheck.storage.views.metadata_stream import BufferedMetadata, FsCheckpointMetadataOutputStream


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckpointStreamFactory:
    """
    Opens streams into memory.

    :param max_state_size: How many bytes each piece of state may have.
    """

    max_state_size: int

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> MemoryCheckpointOutputStream:
        """Open a stream."""
        return MemoryCheckpointOutputStream(self.max_state_size)


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """
    A checkpoint whose metadata is in memory too.

    :param metadata_handle: The metadata.
    """

    metadata_handle: ByteStreamStateHandle
    external_pointer: str = NOT_ADDRESSABLE

    def dispose(self) -> None:
        """Do nothing: there is no directory."""


class MemoryMetadataOutputStream(BufferedMetadata):
    """Metadata that stays in memory."""

    def close_and_finalize_checkpoint(self) -> NonPersistentCompletedCheckpointStorageLocation:
        """
        Return the metadata in its handle.

        :raises StorageError: if the stream is closed.
        """
        data = self.content()
        self.close()
        return NonPersistentCompletedCheckpointStorageLocation(ByteStreamStateHandle(uuid.uuid4().hex, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """A checkpoint that is gone with its process."""

    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> MemoryMetadataOutputStream:
        """Open the stream of the metadata."""
        return MemoryMetadataOutputStream()

    def dispose_on_failure(self) -> None:
        """Do nothing: there is no directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """
    A checkpoint whose metadata, with all state in it, is a file.

    :param storage: Where it goes.
    :param directory: The checkpoint's own directory.
    """

    storage: CheckpointStorage
    directory: str
    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        return FsCheckpointMetadataOutputStream(self.storage, self.directory)

    def dispose_on_failure(self) -> None:
        """
        Delete the checkpoint's own directory.

        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.directory)
