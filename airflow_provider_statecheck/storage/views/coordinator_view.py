"""Checkpoint storage as the coordinator sees it."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.storage.views.completed_location import CompletedCheckpointStorageLocation
from airflow_provider_statecheck.storage.views.location import CheckpointStorageLocation


class CheckpointStorageCoordinatorView(Protocol):
    """Makes the places of checkpoints, and finds them again."""

    @property
    def supports_highly_available_storage(self) -> bool:
        """Tell whether metadata outlives this process."""
        ...

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        ...

    def resolve_checkpoint(self, pointer: str | None) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of any job to which a pointer leads.

        :raises InvalidConfigurationError: for no pointer or an empty one.
        :raises StorageError: for text that is no URI, or if the storage fails.
        :raises CheckpointNotFoundError: if there is none.
        """
        ...

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Make the directories that all checkpoints have in common; they may be there.

        :raises StorageError: if that fails.
        """
        ...

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Make the place of a checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        :raises StorageError: if that fails.
        """
        ...

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> CheckpointStorageLocation:
        """
        Make the place of a savepoint.

        :param external: The directory in which it gets one of its own, instead of the default.
        :raises InvalidConfigurationError: if there is neither a target nor a default.
        :raises StorageError: if that fails.
        """
        ...
