"""Kind, ownership, retention and options of a checkpoint: Flink's ``CheckpointProperties``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SavepointClaimedError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAGIC = b"\x05\x5f\x3f\x18"


class SavepointFormat(StrEnum):
    """Format of the state in a savepoint."""

    CANONICAL = "canonical"
    """Parquet, which is the same for all state backends and readable without this library."""
    NATIVE = "native"
    """File format of the state backend."""


class CheckpointType(StrEnum):
    """Type of a checkpoint or a savepoint."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full_checkpoint"
    """Checkpoint that references no files of earlier checkpoints."""
    SAVEPOINT = "savepoint"
    SAVEPOINT_SUSPEND = "savepoint_suspend"
    """Savepoint that stops the job at its current position."""
    SAVEPOINT_TERMINATE = "savepoint_terminate"
    """Savepoint that finishes the job."""

    @property
    def is_savepoint(self) -> bool:
        """Whether it belongs to the user."""
        return self not in (CheckpointType.CHECKPOINT, CheckpointType.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether tasks wait for its completion before they continue."""
        return self in (CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE)

    @property
    def is_terminate(self) -> bool:
        """Whether it finishes the job."""
        return self is CheckpointType.SAVEPOINT_TERMINATE


class JobStatus(StrEnum):
    """Status of a job for the retention of its checkpoints."""

    FINISHED = "finished"
    """The run succeeded."""
    CANCELED = "canceled"
    """A user marked the run as failed or deleted it."""
    FAILED = "failed"
    """The run failed with an error."""
    SUSPENDED = "suspended"
    """The run is in progress or will resume, for example after a restart of a worker."""

    @property
    def is_globally_terminal(self) -> bool:
        """Whether the job has ended permanently."""
        return self is not JobStatus.SUSPENDED


_ENDED_STATES = {None: JobStatus.CANCELED, "success": JobStatus.FINISHED, "failed": JobStatus.FAILED}


def job_status_of(state: str | None, *, is_by_a_person: bool = False) -> JobStatus:
    """
    Return the job status for a state of Airflow.

    :param state: State of the Dag run or of a waiting task; ``None`` for a deleted run.
    :param is_by_a_person: Whether a user marked the run as failed.
    :return: ``SUSPENDED`` for all states that do not end the job, also unknown ones, which must not cause deletions.
    """
    if state == "failed" and is_by_a_person:
        return JobStatus.CANCELED
    return _ENDED_STATES.get(state, JobStatus.SUSPENDED)


class CheckpointRetentionPolicy(StrEnum):
    """Retention of checkpoints after the end of their job."""

    NEVER_RETAIN_AFTER_TERMINATION = "never_retain_after_termination"
    RETAIN_ON_FAILURE = "retain_on_failure"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """Type of a checkpoint or a savepoint, and the events on which its files are deleted."""

    snapshot_type: CheckpointType = CheckpointType.CHECKPOINT
    savepoint_format: SavepointFormat | None = None
    force: bool = False
    """Whether it is taken regardless of the number of checkpoints in progress."""
    discard_on_subsumed: bool = True
    discard_on_finished: bool = True
    discard_on_cancelled: bool = False
    discard_on_failed: bool = False
    discard_on_suspended: bool = False
    unclaimed: bool = False
    """
    Whether it was restored without a claim. The job never deletes it, and new checkpoints reference none of its files.
    """
    member: str = field(default="", metadata={"alias": "part"})
    """Uid of the stage whose member of a savepoint of the whole job was restored; empty for all others."""

    @property
    def is_savepoint(self) -> bool:
        """Whether it belongs to the user."""
        return self.snapshot_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self.snapshot_type.is_synchronous

    @property
    def is_terminate(self) -> bool:
        """Whether the job finishes with it."""
        return self.snapshot_type.is_terminate

    @property
    def ends_others(self) -> bool:
        """Whether it subsumes earlier checkpoints when it is complete, and tasks are notified of it."""
        return not self.is_savepoint or self.is_synchronous

    def discard_on(self, status: JobStatus) -> bool:
        """Return whether its files are deleted when the job ends with a status."""
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
        Return the properties of a checkpoint.

        :param policy: Retention after the end of the job.
        :param is_full: Whether it references no files of earlier checkpoints.
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
        """Return the properties of a savepoint, which only the user deletes."""
        return cls._of_user(CheckpointType.SAVEPOINT, force=force, savepoint_format=SavepointFormat(savepoint_format))

    @classmethod
    def for_sync_savepoint(
        cls, *, terminate: bool, force: bool = True, savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> CheckpointProperties:
        """
        Return the properties of a savepoint that stops the job.

        :param terminate: Whether the job finishes; otherwise it stops at its current position.
        """
        kind = CheckpointType.SAVEPOINT_TERMINATE if terminate else CheckpointType.SAVEPOINT_SUSPEND
        return cls._of_user(kind, force=force, savepoint_format=SavepointFormat(savepoint_format))

    @classmethod
    def for_unclaimed_snapshot(cls, member: str = "") -> CheckpointProperties:
        """
        Return the properties of a checkpoint or savepoint that is restored without a claim.

        :param member: Uid of the stage whose member of a savepoint of the whole job is restored.
        """
        unclaimed = cls._of_user(
            CheckpointType.SAVEPOINT, force=False, savepoint_format=SavepointFormat.CANONICAL, unclaimed=True
        )
        return replace(unclaimed, member=member)

    @classmethod
    def _of_user(
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
            raise InvalidConfigurationError("Expected the format of a savepoint, found None; set canonical or native.")


class RestoreMode(StrEnum):
    """Ownership of a restored checkpoint or savepoint."""

    NO_CLAIM = "no_claim"
    """It keeps its owner; the job deletes none of its files, and new checkpoints reference none."""
    CLAIM = "claim"
    """The restoring job owns the savepoint, and deletes it when it is subsumed and its files are not in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSource:
    """Checkpoint or savepoint of any job that an operator without checkpoints starts from."""

    pointer: str
    """Directory of the checkpoint or savepoint."""
    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    full_size_bytes: int = 0
    mode: RestoreMode = RestoreMode.NO_CLAIM
    member: str = field(default="", metadata={"alias": "part"})
    """Uid of the stage whose member of a savepoint of the whole job is restored; empty for that of one stage."""
    run: str = ""
    """Run that the state has reached; empty for the run of the attempt that starts from it."""
    problem: str | None = None
    """Reason why it cannot be read; relevant only if the operator has no checkpoints."""
    is_unavailable: bool = False
    """Whether the storage did not respond, in which case a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """Claim of a savepoint by one operator, or by a user who disposes of it."""

    pointer: str
    """Directory of the savepoint."""
    job_id: JobId
    operator_id: OperatorId
    """Operator that owns the savepoint; empty for a disposal."""
    claimed_at: datetime

    @property
    def is_disposal(self) -> bool:
        """Whether a user has disposed of the savepoint, whose files are then deleted."""
        return not self.operator_id


def already_claimed(pointer: str) -> SavepointClaimedError:
    """Return the error for a savepoint that another operator has claimed."""
    return SavepointClaimedError(
        f"Expected the savepoint {pointer} to be unclaimed, found it claimed by another job, which may delete it at "
        "any time; take another savepoint and restore that one.",
        pointer=pointer,
    )


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """
    Reference to a storage location that the coordinator chose.

    :param encoded: Encoded path; empty for the configured location.
    """

    encoded: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.encoded, bytes):
            raise InvalidConfigurationError(
                f"Expected a location reference as bytes, found {type(self.encoded).__name__}; create one with "
                "of_path()."
            )

    @classmethod
    def default(cls) -> CheckpointStorageLocationReference:
        """Return the reference to the configured location."""
        return DEFAULT_LOCATION

    @classmethod
    def of_path(cls, path: str) -> CheckpointStorageLocationReference:
        """
        Encode a path.

        :raises InvalidConfigurationError: if the path is empty or cannot be encoded as UTF-8.
        """
        if not path:
            raise InvalidConfigurationError(
                "Expected the path of a location, found an empty one; use default() for the configured location."
            )
        try:
            return cls(_MAGIC + path.encode())
        except UnicodeEncodeError as error:
            raise InvalidConfigurationError(
                "Expected a path that can be encoded as UTF-8, found lone surrogates; correct the path."
            ) from error

    @property
    def is_default(self) -> bool:
        """Whether it is the configured location."""
        return not self.encoded

    @property
    def path(self) -> str:
        """
        The decoded path.

        :raises InvalidConfigurationError: for the default reference, and for bytes that are not an encoded path.
        """
        if self.is_default:
            raise InvalidConfigurationError(
                "Expected a reference to a path, found the default one; check is_default first."
            )
        if len(self.encoded) <= len(_MAGIC):
            raise _undecodable(f"only {len(self.encoded)} bytes, which is too short")
        if not self.encoded.startswith(_MAGIC):
            raise _undecodable("bytes with another prefix")
        try:
            return self.encoded[len(_MAGIC) :].decode()
        except UnicodeDecodeError as error:
            raise _undecodable("a path that is not UTF-8") from error


def _undecodable(found: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected an encoded path as location reference, found {found}; use a reference from of_path() without "
        "truncation."
    )


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    Options of a checkpoint for the tasks that take it.

    :raises InvalidConfigurationError: if either is missing or of another class.
    """

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def __post_init__(self) -> None:
        require("checkpoint_type", self.checkpoint_type, lambda t: isinstance(t, CheckpointType), "a CheckpointType")
        is_reference = isinstance(self.target_location, CheckpointStorageLocationReference)
        require("target_location", self.target_location, lambda _: is_reference, "a CheckpointStorageLocationReference")

    @classmethod
    def for_checkpoint_with_default_location(cls) -> CheckpointOptions:
        """Return the options of a checkpoint in the configured location."""
        return _CHECKPOINT_AT_DEFAULT_LOCATION

    @classmethod
    def for_savepoint(cls, location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """Return the options of a savepoint."""
        return cls(CheckpointType.SAVEPOINT, location)


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """
    Id and time of a checkpoint.

    :param checkpoint_id: Id, at least 0.
    :param timestamp: Time of the trigger by the coordinator.
    :param received_at: Time at which the task received the trigger; ``timestamp`` by default.
    :raises InvalidConfigurationError: for a negative id.
    """

    checkpoint_id: int
    timestamp: datetime
    received_at: datetime | None = None

    def __post_init__(self) -> None:
        require("checkpoint_id", self.checkpoint_id, lambda number: number >= 0, "at least 0")
        if self.received_at is None:
            object.__setattr__(self, "received_at", self.timestamp)

    @property
    def timestamp_milliseconds(self) -> int:
        """The time of the trigger in milliseconds since 1970."""
        return (self.timestamp - _EPOCH) // timedelta(milliseconds=1)


DEFAULT_LOCATION = CheckpointStorageLocationReference()
_CHECKPOINT_AT_DEFAULT_LOCATION = CheckpointOptions(CheckpointType.CHECKPOINT, DEFAULT_LOCATION)
