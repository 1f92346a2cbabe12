"""Messages between a stage and the coordinator, and the validation of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.codec import plain_integer, require, storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, METADATA_FILE, JobId, OfOperator, OperatorId
from airflow_provider_statecheck.checkpoint.masking import require_no_credentials
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointRetentionPolicy,
    CheckpointType,
    RestoreSource as RestoreSource,
    SavepointFormat,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    OnClear,
    OperatorRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRef(OfOperator):
    """Identity of an attempt; the coordinator rejects an epoch below the operator's."""

    job_id: JobId
    operator_id: OperatorId
    epoch: int

    @classmethod
    def of(cls, row: AttemptRecord | OperatorRecord) -> AttemptRef:
        """Return the identity of an attempt, or of the newest attempt of an operator."""
        return cls(job_id=row.job_id, operator_id=row.operator_id, epoch=row.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterAttempt:
    """Requests an epoch and the checkpoints to restore."""

    job_name: str
    uid: str
    attempt_key: str
    """Idempotency key of the client; the same key returns the same grant."""
    owner: AttemptOwner
    storage_base: str
    on_clear: OnClear = OnClear.RESUME_UNCHANGED
    num_retained: int = 2
    checkpoint_timeout_seconds: float = 600.0
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    """Retention after the run has ended; applies to a job that is named after its run."""
    retained_runs: int = 1
    """Number of earlier runs whose last checkpoint is retained, which a restart of a run needs."""
    restore_from: RestoreSource | None = None
    """Checkpoint or savepoint for a fresh start; ``None`` for an empty state."""
    newest_on_storage: int = 0
    """Highest id of the job's checkpoints on storage, including those of other coordinators; 0 if there are none."""
    former_uids: tuple[str, ...] = ()
    """Earlier uids of the operator; it takes over the first one that no other task uses."""
    dag_uids: dict[str, tuple[str, ...]] | None = None
    """
    Uids of the checkpointed tasks of the Dag version by task id, with former uids and without map keys.

    The tuple is empty for a task with a templated uid. ``None`` outside Airflow.
    """
    allow_non_restored_state: bool = False
    """Whether a new operator may start empty if another operator of the job has no task any more."""
    savepoint_at_end: bool = False
    """Whether a savepoint is taken when the stage has finished."""
    waits: bool = False
    """Whether the attempt waits while earlier runs of its task do, and is refused until then."""

    def __post_init__(self) -> None:
        for name in ("num_retained", "retained_runs"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffects:
    """Unconfirmed work on storage and in the sink, which the caller carries out."""

    discards: tuple[CheckpointRecord, ...] = ()
    """Checkpoints whose files must be deleted, oldest first."""
    retained: tuple[CheckpointRecord, ...] = ()
    """Checkpoints whose files must not be deleted: completed and pinned ones."""
    savepoints: tuple[CheckpointRequest, ...] = ()
    """Requested savepoints, which the attempt takes at its next boundary."""
    commits: tuple[int, ...] = ()
    """Ids of completed checkpoints with an unconfirmed sink commit, oldest first."""
    stop: CheckpointRecord | None = None
    """
    Pending savepoint with which the job suspends; the attempt has given its member, and waits for the end of it.

    The registration of a retry also returns a complete one of the job or of the stage alone, if an earlier try ran or
    had failed when it was triggered, or has waited for it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGrant:
    """Reply to a registration."""

    attempt: AttemptRef
    generation: int
    is_restore: bool
    verify_fingerprints: bool
    """Whether a step whose code changed is recomputed."""
    start_reason: str
    candidates: tuple[CheckpointRecord, ...]
    """Checkpoints to restore from, newest first; empty for a fresh start."""
    effects: OpenEffects
    uid: str
    """Uid of the operator; a former uid if the attempt took over that operator."""
    gone_uids: tuple[str, ...] = ()
    """
    Uids of operators that are gone or may be the same stage; a sink that is new in a target must not join their output.
    """
    warning: str = ""
    """Warning for the user, shown before the stage starts; empty if there is none."""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of snapshots that earlier attempts could not read, and that are to be recomputed."""
    storage_bases: tuple[str, ...] = ()
    """Checkpoint directories of all attempts of the operator, whose snapshots a checkpoint may reference."""
    restore_from: RestoreSource | None = None
    """Start that a user has chosen in place of the one that the registration names; ``None`` for that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCheckpoint:
    """Candidate that could not be restored."""

    checkpoint_id: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", storable_text(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRestore:
    """Reports the restored candidate and the newer candidates that could not be restored."""

    attempt: AttemptRef
    checkpoint_id: int | None
    """``None`` if the attempt starts without state, because its source has changed."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    claim: bool = False
    """Whether the job becomes the owner of the restored savepoint."""
    restarted_run: str | None = None
    """
    Run that starts again, because its source has changed: its checkpoints, and those of later runs, are newer than the
    restored one and are given up. ``None`` if none is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress:
    """Reports what an attempt has restored and what it is working on, for display."""

    attempt: AttemptRef
    summary: CheckpointSummary
    """The figures; a repeated message replaces them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpoint:
    """Requests a checkpoint id."""

    attempt: AttemptRef
    request_key: str
    serves: str | None = None
    """Key of the savepoint request to serve; ``None`` for a checkpoint."""
    savepoint_dir: str | None = None
    """Parent directory of the savepoint, unless the savepoint request has a target."""
    timeout_seconds: float | None = None
    """
    Timeout of this checkpoint, which includes an increment that runs after the trigger; ``None`` for the attempt's.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """Triggered checkpoint that awaits its acknowledgement."""

    checkpoint_id: int
    location: str
    triggered_at: datetime
    expires_at: datetime
    request_key: str = ""
    """Key of the trigger request, which the writer repeats in ``_metadata``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeCheckpoint:
    """Reports that all files of a checkpoint, with ``_metadata`` as the last one, are on storage."""

    attempt: AttemptRef
    checkpoint_id: int
    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    has_commit: bool = False
    """Whether a sink must commit output after completion; savepoints are never committed."""
    increment_seconds: float = 0.0
    """Duration of the increment between the trigger and the start of the checkpoint."""
    summary: CheckpointSummary | None = None
    """Figures for display; ``None`` if an older version wrote the checkpoint."""


class AcknowledgeResult(StrEnum):
    """Result of an acknowledgement."""

    SUCCESS = "success"
    """The checkpoint awaited it."""
    DUPLICATE = "duplicate"
    """The attempt has acknowledged before."""
    DISCARDED = "discarded"
    """The checkpoint ended before the message arrived, with an abort or without this acknowledgement."""
    UNKNOWN = "unknown"
    """The attempt has no such checkpoint."""
    FORGOTTEN = "forgotten"
    """The checkpoint does not exist or ended long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeReply:
    """Reply to an acknowledgement."""

    result: AcknowledgeResult
    effects: OpenEffects
    checkpoint: CheckpointRecord | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the checkpoint is complete after this message."""
        return self.result in (AcknowledgeResult.SUCCESS, AcknowledgeResult.DUPLICATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineCheckpoint:
    """Reports that a checkpoint will not be completed."""

    attempt: AttemptRef
    checkpoint_id: int
    reason: CheckpointFailureReason
    message: str = ""
    increment_seconds: float = 0.0
    """Duration of the increment between the trigger and the start of the checkpoint."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", storable_text(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishAttempt:
    """Reports the end of an attempt."""

    attempt: AttemptRef
    status: AttemptStatus
    """``FINISHED`` or ``FAILED``."""
    message: str = ""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of restored snapshots that the attempt could not read."""
    restored_summary: CheckpointSummary | None = None
    """What the attempt has restored, and what checkpointing has cost it; ``None`` if neither is known."""
    is_of_task: bool = False
    """Whether this is the end of the task, which replaces the one that a driver in another process reported."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", storable_text(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSavepoint(OfOperator):
    """Requests a savepoint of an operator, with or without a running stage, or of the whole job."""

    job_id: JobId
    operator_id: OperatorId
    request_key: str
    """Idempotency key of the client."""
    target: str | None = None
    """Parent directory of the savepoint; ``None`` for the savepoint directory of the stage."""
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    kind: CheckpointType = CheckpointType.SAVEPOINT
    """``SAVEPOINT``, or a kind that stops the stage."""
    requested_by: str = ""
    """Display name of the requester."""

    @classmethod
    def of_job(cls, job_id: JobId, **fields: Any) -> Self:
        """Return the request for a savepoint of the whole job."""
        return cls(job_id=job_id, operator_id=ALIGNED_OPERATOR_ID, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSavepoint:
    """Reports that a savepoint of an operator whose stage does not run was written or has failed."""

    job_id: JobId
    checkpoint_id: int
    metadata_uri: str = ""
    metadata_size: int = 0
    metadata_sha256: str = ""
    state_size_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    summary: CheckpointSummary | None = None
    """Figures of the copied checkpoint."""
    failure: str | None = None
    """Reason of the failure; ``None`` if the savepoint was written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "failure", None if self.failure is None else storable_text(self.failure))


LONGEST_CHECKPOINT = timedelta(days=366)
"""Maximum checkpoint timeout; databases cannot store much later expiry times."""
HIGHEST_ID = 10_000_000
"""Highest checkpoint id accepted from a directory name; no coordinator allocates higher ids."""
_HIGHEST_SMALL = 2**31 - 1
"""Highest number that a column of 32 bits holds."""


def require_metadata_in(directory: str, metadata_uri: str) -> None:
    """
    Raise an error if a metadata file is not in the directory of its checkpoint.

    :raises InvalidConfigurationError: if the URI differs from the expected one.
    """
    expected = f"{directory}/{METADATA_FILE}"
    require("metadata_uri", metadata_uri, lambda uri: uri == expected, expected)


def require_id_on_storage(newest: int) -> None:
    """
    Validate the highest checkpoint id that a client has found on storage, 0 for none.

    :raises InvalidConfigurationError: if no coordinator allocates such an id.
    """
    require("newest_on_storage", newest, lambda i: 0 <= i <= HIGHEST_ID, f"0 to {HIGHEST_ID}")


def _is_small_from(lowest: int) -> Callable[[object], bool]:
    return lambda n: isinstance(n, int) and not isinstance(n, bool) and lowest <= n <= _HIGHEST_SMALL


def require_valid(request: RegisterAttempt) -> None:
    """
    Validate the settings of a registration.

    :raises InvalidConfigurationError: for the first setting that is out of range.
    """
    require_id_on_storage(request.newest_on_storage)
    require("num_retained", request.num_retained, _is_small_from(1), f"from 1 to {_HIGHEST_SMALL}")
    require("retained_runs", request.retained_runs, _is_small_from(0), f"from 0 to {_HIGHEST_SMALL}")
    require(
        "checkpoint_timeout_seconds",
        request.checkpoint_timeout_seconds,
        lambda s: 0.01 <= s <= LONGEST_CHECKPOINT.total_seconds(),
        "from 0.01 seconds to a year",
    )
    require(
        "allow_non_restored_state",
        request.allow_non_restored_state,
        lambda flag: isinstance(flag, bool),
        "True or False",
    )
    require("checkpoint_dir", request.storage_base, lambda uri: "://" in uri, "a URI such as file:///data/checkpoints")
    require_no_credentials("checkpoint_dir", request.storage_base)
