"""What tasks are told of a checkpoint: Flink's ``CheckpointOptions`` and ``CheckpointMetaData``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.location_reference import (
    DEFAULT_LOCATION,
    CheckpointStorageLocationReference,
)
from airflow_provider_statecheck.checkpoint.validation import require


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    How a checkpoint is taken and where its bytes go; two of equal fields are equal.

    :param checkpoint_type: What is asked of the snapshot.
    :param target_location: Where its bytes go.
    :raises InvalidConfigurationError: if either is missing.
    """

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def __post_init__(self) -> None:
        require("checkpoint_type", self.checkpoint_type, lambda t: isinstance(t, CheckpointType), "a CheckpointType")
        is_reference = isinstance(self.target_location, CheckpointStorageLocationReference)
        require("target_location", self.target_location, lambda _: is_reference, "a CheckpointStorageLocationReference")

    @classmethod
    def for_checkpoint_with_default_location(cls) -> CheckpointOptions:
        """Return those of a checkpoint in the configured place."""
        return _CHECKPOINT_AT_DEFAULT_LOCATION

    @classmethod
    def for_savepoint(cls, location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """
        Return those of a savepoint.

        :param location: Where it is written.
        """
        return cls(CheckpointType.SAVEPOINT, location)


_CHECKPOINT_AT_DEFAULT_LOCATION = CheckpointOptions(CheckpointType.CHECKPOINT, DEFAULT_LOCATION)


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """
    Which checkpoint it is, and when.

    :param checkpoint_id: Its id, at least 0.
    :param timestamp: When the coordinator triggered it.
    :param received_at: When the task heard of it; by default at once.
    :raises InvalidConfigurationError: for a negative id.
    """

    checkpoint_id: int
    timestamp: datetime
    received_at: datetime | None = None

    def __post_init__(self) -> None:
        require("checkpoint_id", self.checkpoint_id, lambda number: number >= 0, "at least 0")
        if self.received_at is None:
            object.__setattr__(self, "received_at", self.timestamp)
