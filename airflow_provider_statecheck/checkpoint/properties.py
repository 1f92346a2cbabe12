"""Who owns a snapshot and when its bytes go: Flink's ``CheckpointProperties``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.job_status import JobStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class CheckpointRetentionPolicy(StrEnum):
    """After which ends of a job its checkpoints stay."""

    NEVER_RETAIN_AFTER_TERMINATION = "never_retain_after_termination"
    RETAIN_ON_FAILURE = "retain_on_failure"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """The kind of a snapshot and on which events its bytes are deleted; two of equal fields are equal."""

    snapshot_type: CheckpointType = CheckpointType.CHECKPOINT
    savepoint_format: SavepointFormat | None = None
    force: bool = False
    """Whether it is taken however many others are in progress."""
    discard_on_subsumed: bool = True
    discard_on_finished: bool = True
    discard_on_cancelled: bool = False
    discard_on_failed: bool = False
    discard_on_suspended: bool = False
    unclaimed: bool = False
    """Whether it is somebody else's, restored without a claim: never deleted, and no new checkpoint may name its files."""

    @property
    def is_savepoint(self) -> bool:
        """Tell whether the snapshot belongs to the user."""
        return self.snapshot_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Tell whether it is part of stopping the job."""
        return self.snapshot_type.is_synchronous

    @property
    def is_terminate(self) -> bool:
        """Tell whether the job comes to its end with it."""
        return self.snapshot_type.is_terminate

    def discard_on(self, status: JobStatus) -> bool:
        """Tell whether its bytes go when the job ends so."""
        flags = {
            JobStatus.FINISHED: self.discard_on_finished,
            JobStatus.CANCELED: self.discard_on_cancelled,
            JobStatus.FAILED: self.discard_on_failed,
            JobStatus.SUSPENDED: self.discard_on_suspended,
        }
        return flags[JobStatus(status)]

    @classmethod
    def for_checkpoint(
        cls,
        policy: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        *,
        is_full: bool = False,
    ) -> CheckpointProperties:
        """
        Return those of a checkpoint.

        :param policy: After which ends of the job it stays.
        :param is_full: Whether it names no file of an earlier one.
        """
        policy = CheckpointRetentionPolicy(policy)
        retains_on_failure = policy is not CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
        retains_on_cancellation = policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
        return cls(
            snapshot_type=CheckpointType.FULL_CHECKPOINT if is_full else CheckpointType.CHECKPOINT,
            discard_on_cancelled=not retains_on_cancellation,
            discard_on_failed=not retains_on_failure,
            discard_on_suspended=not retains_on_cancellation,
        )

    @classmethod
    def for_savepoint(
        cls, *, force: bool = True, savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> CheckpointProperties:
        """Return those of a savepoint, which nobody but the user deletes."""
        return cls._kept(CheckpointType.SAVEPOINT, force=force, savepoint_format=SavepointFormat(savepoint_format))

    @classmethod
    def for_sync_savepoint(
        cls, *, terminate: bool, force: bool = True, savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> CheckpointProperties:
        """
        Return those of a savepoint with which the job stops.

        :param terminate: Whether the job comes to its end first, in contrast to stopping where it is.
        """
        kind = CheckpointType.SAVEPOINT_TERMINATE if terminate else CheckpointType.SAVEPOINT_SUSPEND
        return cls._kept(kind, force=force, savepoint_format=SavepointFormat(savepoint_format))

    @classmethod
    def for_unclaimed_snapshot(cls) -> CheckpointProperties:
        """Return those of a snapshot that was restored and stays somebody else's."""
        return cls._kept(
            CheckpointType.SAVEPOINT, force=False, savepoint_format=SavepointFormat.CANONICAL, unclaimed=True
        )

    @classmethod
    def _kept(
        cls, kind: CheckpointType, *, force: bool, savepoint_format: SavepointFormat, unclaimed: bool = False
    ) -> CheckpointProperties:
        return cls(
            snapshot_type=kind,
            savepoint_format=savepoint_format,
            force=force,
            discard_on_subsumed=False,
            discard_on_finished=False,
            unclaimed=unclaimed,
        )

    def __post_init__(self) -> None:
        if self.is_savepoint and self.savepoint_format is None:
            raise InvalidConfigurationError("Expected the format of a savepoint, found None; say canonical or native.")
