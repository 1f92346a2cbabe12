"""Kind, owner and lifetime of a snapshot: Flink's ``CheckpointProperties`` and related enums."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SnapshotClaimedError


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


class JobStatus(StrEnum):
    """How a job ended, or that it did not."""

    FINISHED = "finished"
    """Its run succeeded."""
    CANCELED = "canceled"
    """A person ended it: the run was marked failed, cleared away or deleted."""
    FAILED = "failed"
    """Its run failed by an error."""
    SUSPENDED = "suspended"
    """It goes on later: a worker or scheduler stopped, a task is deferred."""

    @property
    def is_globally_terminal(self) -> bool:
        """Tell whether the job never goes on."""
        return self is not JobStatus.SUSPENDED


_OF_STATE = {None: JobStatus.CANCELED, "success": JobStatus.FINISHED, "failed": JobStatus.FAILED}
_GOES_ON = frozenset(
    {
        "scheduled",
        "queued",
        "running",
        "restarting",
        "deferred",
        "awaiting_input",
        "up_for_retry",
        "up_for_reschedule",
    }
)


def job_status_of(state: str | None, *, is_by_a_person: bool = False) -> JobStatus:
    """
    Return what a state of Airflow means for the checkpoints of the job.

    :param state: State of the Dag run, or of a task that waits; ``None`` for a run whose row is gone.
    :param is_by_a_person: Whether somebody marked the run as failed, in contrast to an error of a task.
    :raises InvalidConfigurationError: for any other state, because no bytes may go for a state that nobody knows.
    """
    if state in _GOES_ON:
        return JobStatus.SUSPENDED
    if state not in _OF_STATE:
        known = ", ".join(sorted({*filter(None, _OF_STATE), *_GOES_ON}))
        raise InvalidConfigurationError(
            f"Expected a state of a Dag run or of a waiting task ({known}), found {state!r}; treat the job as not ended.",
            key="state",
            value=state,
        )
    return JobStatus.CANCELED if state == "failed" and is_by_a_person else _OF_STATE[state]


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


class RestoreMode(StrEnum):
    """Whose a restored snapshot is."""

    NO_CLAIM = "no_claim"
    """Its owner's: nothing of it is deleted, and new checkpoints name none of its files."""
    CLAIM = "claim"
    """The restoring job's, which deletes it when it is subsumed and no file of it is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """One operator owns a snapshot; a second claim of it is refused."""

    pointer: str
    """The snapshot's directory."""
    job_id: JobId
    operator_id: OperatorId
    claimed_at: datetime


def already_claimed(pointer: str) -> SnapshotClaimedError:
    """Return the error that says whose a snapshot is not."""
    return SnapshotClaimedError(
        f"Expected the savepoint {pointer} to be free, but another job claimed it and may delete it at any time; make "
        f"another savepoint and restore that one.",
        pointer=pointer,
    )
