"""The checkpoint storage as a task of Spark opens it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.storage.allowed_places import AllowedPlaces
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


@dataclass(frozen=True, slots=True)
class TaskStorage:
    """What another process needs to open the same storage; it shows no credentials."""

    base_uri: str
    options: HiddenOptions
    allowed: AllowedPlaces

    @classmethod
    def of(cls, storage: CheckpointStorage) -> TaskStorage:
        """Describe a storage of the driver."""
        return cls(storage.base_uri, HiddenOptions(storage.options), storage.allowed)

    def open(self) -> CheckpointStorage:
        """Open it in this process."""
        return CheckpointStorage.open(self.base_uri, **self.options.reveal()).within(self.allowed)
