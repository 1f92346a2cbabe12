"""Messages between a stage and the coordinator, and the ranges that their values must satisfy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointRetentionPolicy,
    CheckpointType,
    RestoreMode,
    SavepointFormat,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointRecord,
    OnClear,
    SnapshotRequest,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

LONGEST_TEXT = 2000
"""How many characters of an error's text a message carries."""


def told(text: str) -> str:
    """
    Return the text of an error as a row can keep it.

    It may quote data: databases keep no U+0000 and no half of a surrogate pair, and the API takes messages of limited size.
    """
    return text[:LONGEST_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRef:
    """The identity under which an attempt speaks; a lower epoch than the operator's is refused."""

    job_id: JobId
    operator_id: OperatorId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSource:
    """A snapshot of another job, or of this one's past, that an operator without checkpoints begins from."""

    pointer: str
    """Its directory."""
    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    full_size_bytes: int = 0
    mode: RestoreMode = RestoreMode.NO_CLAIM
    problem: str | None = None
    """Why it cannot be read, which matters only where nothing else is left to begin from."""
    is_unavailable: bool = False
    """Whether that is because the storage did not answer, so that a later try may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterAttempt:
    """Ask for an epoch and for what to restore."""

    job_name: str
    uid: str
    attempt_key: str
    """Made by the client; the same key gives the same grant."""
    owner: AttemptOwner
    storage_base: str
    on_clear: OnClear = OnClear.RESUME_UNCHANGED
    num_retained: int = 2
    checkpoint_timeout_seconds: float = 600.0
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    """After which ends of the run the checkpoints stay, for a job that is named after its run."""
    retained_runs: int = 1
    """Of how many earlier runs the last checkpoint is kept, so that a run can be begun again."""
    restore_from: RestoreSource | None = None
    """Where a fresh start begins, instead of from nothing."""
    newest_on_storage: int = 0
    """The highest id among the job's checkpoints on storage, those of other coordinators included; 0 where there are none."""
    former_uids: tuple[str, ...] = ()
    """Uids that the operator had before; it takes over the operator of the first one that no other task has."""
    dag_uids: dict[str, tuple[str, ...]] | None = None
    """
    The uids, former ones included and map keys left out, of each checkpointed task of the Dag version, by task id.

    A task whose uid is a template has none here. ``None`` outside Airflow.
    """
    allow_non_restored_state: bool = False
    """Whether a new operator may start with nothing although another one of the job is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffects:
    """What the rows allow and nobody has confirmed yet; the caller that has the storage carries it out."""

    discards: tuple[CheckpointRecord, ...] = ()
    """Checkpoints whose bytes are to be deleted, oldest first."""
    retained: tuple[CheckpointRecord, ...] = ()
    """Checkpoints whose bytes must stay: completed ones and pinned ones."""
    savepoints: tuple[SnapshotRequest, ...] = ()
    """Savepoints that somebody asked for; the attempt takes them at its next boundary."""
    commits: tuple[int, ...] = ()
    """Completed checkpoints whose commit in the sink is not confirmed, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGrant:
    """The answer to a registration."""

    attempt: AttemptRef
    generation: int
    is_restore: bool
    verify_fingerprints: bool
    """Whether a step whose code changed is computed anew."""
    start_reason: str
    candidates: tuple[CheckpointRecord, ...]
    """Checkpoints to restore from, newest first; empty for a fresh start."""
    effects: OpenEffects
    uid: str
    """The operator's: a former uid where the attempt took over that operator."""
    gone_uids: tuple[str, ...] = ()
    """Operators of the job that no task has any more; a new sink must not write beside their output."""
    warning: str = ""
    """What the user should know before the stage starts; empty if all is well."""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of snapshots that earlier attempts could not read; they are to be computed anew."""
    storage_bases: tuple[str, ...] = ()
    """Checkpoint directories of the operator's attempts; a checkpoint may name a snapshot that an earlier attempt wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptAttempt:
    """Speak for an attempt that still runs although the task that registered it is gone."""

    attempt: AttemptRef
    owner: AttemptOwner
    """Who speaks from now on: a later try of the same logical task in the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCheckpoint:
    """A candidate that could not be used."""

    checkpoint_id: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", told(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRestore:
    """Say which candidate was restored and which newer ones could not be."""

    attempt: AttemptRef
    checkpoint_id: int
    skipped: tuple[SkippedCheckpoint, ...] = ()
    claim: bool = False
    """Whether the job owns the savepoint from now on that this attempt began from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpoint:
    """Ask for a checkpoint id."""

    attempt: AttemptRef
    request_key: str
    serves: str | None = None
    """The key of the request for a savepoint that is served with it; ``None`` for a checkpoint."""
    savepoint_dir: str | None = None
    """The directory below which the coordinator makes a new one for the savepoint, unless the request names another."""
    timeout_seconds: float | None = None
    """How long it may take, where its id is drawn before the work that it is to hold; ``None`` for the attempt's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that waits for its acknowledgement."""

    checkpoint_id: int
    location: str
    triggered_at: datetime
    expires_at: datetime
    request_key: str = ""
    """The key of the message that triggered it, to be written into ``_metadata``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeCheckpoint:
    """Say that all bytes of a checkpoint and, last, its ``_metadata`` are on storage."""

    attempt: AttemptRef
    checkpoint_id: int
    metadata_uri: str
    metadata_size: int
    metadata_sha256: str
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    has_commit: bool = False
    """Whether it holds what a sink commits once it is completed; of a savepoint nothing is committed."""
    increment_seconds: float = 0.0
    """How long the increment took for which the id was drawn ahead. The checkpoint itself began after that."""


class AcknowledgeResult(StrEnum):
    """What became of an acknowledgement."""

    SUCCESS = "success"
    """The checkpoint is completed by this message."""
    DUPLICATE = "duplicate"
    """It was completed by an earlier copy of this message."""
    DISCARDED = "discarded"
    """It was aborted before; the message came too late."""
    UNKNOWN = "unknown"
    """No such checkpoint of this attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeReply:
    """The answer to an acknowledgement."""

    result: AcknowledgeResult
    effects: OpenEffects
    checkpoint: CheckpointRecord | None = None

    @property
    def is_completed(self) -> bool:
        """Tell whether the checkpoint is complete after this message."""
        return self.result in (AcknowledgeResult.SUCCESS, AcknowledgeResult.DUPLICATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineCheckpoint:
    """Say that a checkpoint will not be completed."""

    attempt: AttemptRef
    checkpoint_id: int
    reason: CheckpointFailureReason
    message: str = ""
    increment_seconds: float = 0.0
    """How long the increment took for which the id was drawn ahead."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", told(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmDiscards:
    """Say that the bytes of some checkpoints are gone."""

    job_id: JobId
    checkpoint_ids: tuple[int, ...]
    attempt: AttemptRef | None = None
    """Who deleted; ``None`` for maintenance, which acts for no attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmCommits:
    """Say that a sink committed what some checkpoints hold, and with it what older ones of the same generation hold."""

    attempt: AttemptRef
    checkpoint_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishAttempt:
    """Say that an attempt has ended."""

    attempt: AttemptRef
    status: AttemptStatus
    """``FINISHED`` or ``FAILED``."""
    message: str = ""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of snapshots that the attempt restored and found to be damaged when it read them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", told(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSavepoint:
    """Ask for a savepoint of an operator, whether a stage runs or not."""

    job_id: JobId
    operator_id: OperatorId
    request_key: str
    """Made by the client; the same key is the same request."""
    target: str | None = None
    """Directory below which it is to be written; ``None`` for the one that the stage is configured with."""
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    kind: CheckpointType = CheckpointType.SAVEPOINT
    """``SAVEPOINT``, or one with which the stage stops."""
    requested_by: str = ""
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginSavepoint:
    """Take a savepoint in place of a stage, of which none runs."""

    job_id: JobId
    request_key: str
    """Of the request that is served."""
    savepoint_dir: str
    """The directory below which the coordinator makes a new one for the savepoint, unless the request names another."""
    trigger_key: str
    """Made by the client; the same key gives the same savepoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSavepoint:
    """Say that such a savepoint is written, or that it cannot be."""

    job_id: JobId
    checkpoint_id: int
    metadata_uri: str = ""
    metadata_size: int = 0
    metadata_sha256: str = ""
    state_size_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failure: str | None = None
    """Why it cannot be; ``None`` if it is written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "failure", None if self.failure is None else told(self.failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisposeSavepoint:
    """Say that a savepoint is no longer wanted."""

    pointer: str
    """Its directory."""
    job_id: JobId
    """The job that it was taken of, which may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisposedSavepoint:
    """The answer to that: the savepoint's bytes may go."""

    checkpoint: CheckpointRecord | None = None
    """Its row, where there still is one; that the bytes are gone is to be confirmed then."""


LONGEST_CHECKPOINT = timedelta(days=366)
"""No checkpoint may be given more time; a database has no room for the end of a longer one."""
HIGHEST_ID = 10_000_000
"""The highest checkpoint id that is taken from the name of a directory; anything above was not drawn by a coordinator."""


def require(key: str, value: Any, is_valid: Callable[[Any], bool], expected: str) -> None:
    """
    Refuse a setting that is out of range.

    :raises InvalidConfigurationError: naming the key, the value and what is expected.
    """
    if not is_valid(value):
        raise InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)


def require_metadata_in(directory: str, metadata_uri: str) -> None:
    """
    Refuse metadata that lie elsewhere than in the directory of their checkpoint.

    :raises InvalidConfigurationError: naming both.
    """
    expected = f"{directory}/{METADATA_FILE}"
    require("metadata_uri", metadata_uri, lambda uri: uri == expected, expected)


def require_valid(request: RegisterAttempt) -> None:
    """
    Check the settings of a registration.

    :raises InvalidConfigurationError: for the first one that is out of range.
    """
    require("newest_on_storage", request.newest_on_storage, lambda i: 0 <= i <= HIGHEST_ID, f"0 to {HIGHEST_ID}")
    require("num_retained", request.num_retained, lambda n: n >= 1, "at least 1")
    require("retained_runs", request.retained_runs, lambda n: n >= 0, "0 or more")
    require(
        "checkpoint_timeout_seconds",
        request.checkpoint_timeout_seconds,
        lambda s: 0.01 <= s <= LONGEST_CHECKPOINT.total_seconds(),
        "from 0.01 seconds to a year",
    )
    require("checkpoint_dir", request.storage_base, lambda uri: "://" in uri, "a URI such as file:///data/checkpoints")
