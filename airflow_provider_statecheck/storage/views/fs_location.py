"""A directory of one checkpoint in progress."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream, StateWriting
from airflow_provider_statecheck.storage.views.metadata_stream import FsCheckpointMetadataOutputStream


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStreamFactory:
    """
    Opens streams into the directories of a checkpoint.

    :param storage: Where they are.
    :param exclusive: The checkpoint's own directory.
    :param shared: The directory of state that several checkpoints may name.
    :param writing: How state is written.
    """

    storage: CheckpointStorage
    exclusive: str
    shared: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream; nothing is created on storage yet."""
        directory = self.shared if scope is CheckpointedStateScope.SHARED else self.exclusive
        return FsCheckpointStateOutputStream.open(self.storage, directory, self.writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStorageLocation(FsCheckpointStreamFactory):
    """
    The directories of a checkpoint, as its coordinator has them.

    :param taskowned: The directory of state that belongs to tasks.
    :param location_reference: What tells tasks of this place.
    """

    taskowned: str
    location_reference: CheckpointStorageLocationReference

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        return FsCheckpointMetadataOutputStream(self.storage, self.exclusive)

    def dispose_on_failure(self) -> None:
        """
        Delete the checkpoint's own directory.

        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.exclusive)
