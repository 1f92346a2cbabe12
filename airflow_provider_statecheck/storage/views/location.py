"""Where the bytes of one checkpoint in progress go."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.storage.views.metadata_stream import CheckpointMetadataOutputStream
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory


class CheckpointStorageLocation(CheckpointStreamFactory, Protocol):
    """A place that one checkpoint has for itself."""

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """Return what tells tasks of this place."""
        ...

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        ...

    def dispose_on_failure(self) -> None:
        """
        Delete what the checkpoint has for itself; shared state stays.

        :raises StorageError: if part of it may still be there.
        """
        ...
