"""What kind of snapshot a checkpoint is: Flink's types, formats and sharing strategies."""

from __future__ import annotations

from enum import StrEnum


class SharingStrategy(StrEnum):
    """Which files a snapshot may have in common with others."""

    FORWARD_BACKWARD = "forward_backward"
    """It may name files of earlier snapshots, and later ones may name its files."""
    FORWARD = "forward"
    """It names no file of an earlier snapshot; later ones may name its files."""
    NO_SHARING = "no_sharing"
    """Its files are its own."""


class SavepointFormat(StrEnum):
    """How the state of a savepoint is written."""

    CANONICAL = "canonical"
    """Equal for all state backends: Parquet, readable without this library."""
    NATIVE = "native"
    """The backend's own files."""


class CheckpointType(StrEnum):
    """What is asked of a snapshot."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full_checkpoint"
    """A checkpoint that names no file of an earlier one."""
    SAVEPOINT = "savepoint"
    SAVEPOINT_SUSPEND = "savepoint_suspend"
    """A savepoint after which the job stops where it is."""
    SAVEPOINT_TERMINATE = "savepoint_terminate"
    """A savepoint after which the job comes to its end."""

    @property
    def is_savepoint(self) -> bool:
        """Tell whether the snapshot belongs to the user."""
        return self not in (CheckpointType.CHECKPOINT, CheckpointType.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Tell whether tasks wait after it until they are told that it is complete."""
        return self in (CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE)

    @property
    def is_terminate(self) -> bool:
        """Tell whether the job is to come to its end with it."""
        return self is CheckpointType.SAVEPOINT_TERMINATE

    @property
    def sharing(self) -> SharingStrategy:
        """Return which files it may have in common with other snapshots."""
        if self is CheckpointType.CHECKPOINT:
            return SharingStrategy.FORWARD_BACKWARD
        if self is CheckpointType.FULL_CHECKPOINT:
            return SharingStrategy.FORWARD
        return SharingStrategy.NO_SHARING
