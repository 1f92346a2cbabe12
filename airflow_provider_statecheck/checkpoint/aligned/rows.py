"""
Messages of a leader of aligned checkpoints to its rows.

The leader takes a savepoint of the whole job, or is the coordinator of a program: it decides and has the storage, and
``AlignedCheckpoints`` changes the rows. Every message names the leader, whose calls have no effect after a newer one
has taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.codec import require, storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId, new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult, AttemptRef, OpenEffects
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    AttemptOwner,
    CheckpointRecord,
    CheckpointRequest,
)
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLeadership:
    """Registers a leader of the aligned checkpoints of a job."""

    job_name: str
    attempt_key: str
    """Idempotency key of the client; the same key returns the same leader."""
    owner: AttemptOwner
    storage_base: str
    """Directory of all checkpoints."""
    newest_on_storage: int = 0
    """Highest checkpoint id of a directory of the job; 0 without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedTask:
    """Task of a checkpoint that must acknowledge, or that had finished."""

    operator_id: OperatorId
    attempt_id: str
    is_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginCheckpoint:
    """Begins the checkpoint of a request, if the request is still the one to trigger."""

    leader: AttemptRef
    decider: CheckpointRequestDecider
    cleanings: int = 0
    """Number of cleanings in progress."""
    request_key: str
    coordinator: str
    """Unique name of the coordinator, to which a repeated message returns the same checkpoint."""
    awaited: tuple[AwaitedTask, ...]
    timeout_seconds: float
    is_full: bool = False
    """Whether the checkpoint must not reference files of earlier ones."""
    savepoint_dir: str | None = None
    """Parent directory of a savepoint without a target, in which the coordinator draws a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeAligned:
    """Asks whether a checkpoint awaits an acknowledgement, or stores the acknowledgement."""

    leader: AttemptRef
    checkpoint_id: int
    attempt_id: str | None
    """Attempt of the operator's task; ``None`` for the coordinator."""
    state_size_bytes: int = 0
    is_written: bool = False
    """
    Whether the state is on storage and the acknowledgement is stored; otherwise, the call returns the verdict only.
    """
    metrics: dict[str, int] = field(default_factory=dict)
    manifest: FileStateHandle | None = None
    """Manifest of the state, in the directory of the checkpoint; ``None`` for an operator without state."""
    finalizer: str = ""
    """Name of the coordinator, which finalizes the checkpoint after the last acknowledgement."""
    lease_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedCheckpoint:
    """The row of a checkpoint with all its acknowledgements."""

    checkpoint: CheckpointRecord
    acknowledgements: tuple[AcknowledgementRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The verdict on an acknowledgement."""

    verdict: AcknowledgeResult
    checkpoint: CheckpointRecord | None = None
    acknowledgements: tuple[AcknowledgementRecord, ...] = ()
    """The acknowledgements of the checkpoint, unless the verdict is ``SUCCESS``."""
    finalizing: AcknowledgedCheckpoint | None = None
    """The checkpoint, if this was the last acknowledgement and the caller must finalize it."""
    has_expired: bool = False
    """Whether a checkpoint of the job has expired, which the caller must abort first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The checkpoints that a coordinator continues."""

    finalizing: tuple[AcknowledgedCheckpoint, ...]
    """The checkpoints that it must finalize."""
    pending: tuple[AcknowledgedCheckpoint, ...] = ()
    """The pending checkpoints of earlier leaders."""


class AbortScope(StrEnum):
    """The checkpoints to abort."""

    CHECKPOINT = "checkpoint"
    """The pending checkpoint with an id."""
    REQUEST = "request"
    """The pending checkpoint of a request; a request without a checkpoint fails."""
    QUEUED = "queued"
    """No checkpoint; a request without a checkpoint fails."""
    EXPIRED = "expired"
    """The pending checkpoints whose timeout has passed."""
    OLDER = "older"
    """The pending checkpoints that a completed checkpoint makes useless."""
    FINALIZATION = "finalization"
    """The checkpoint with an id, while a finalizer holds it."""
    EVERYTHING = "everything"
    """All pending checkpoints and all queued requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCheckpoints:
    """Aborts the checkpoints of a scope, and fails their requests."""

    leader: AttemptRef
    scope: AbortScope
    reason: CheckpointFailureReason
    message: str = ""
    checkpoint_id: int = 0
    request_key: str = ""
    finalizer: str | None = None
    lease_until: datetime | None = None
    uids: dict[str, str] = field(default_factory=dict)
    """Uids by operator id, with which the failure message of an expired checkpoint names the operators it awaits."""
    abort_key: str = field(default_factory=new_key)
    """Idempotency key of the client; the same key returns the same checkpoints and aborts no others."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", storable_text(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningEffects:
    """Checkpoints to delete, and what may reference their files."""

    effects: OpenEffects
    manifests: tuple[AcknowledgementRecord, ...] = ()
    """The acknowledgements of the checkpoints in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutHandle:
    """Adds the handle of a checkpoint whose metadata is on storage, or replaces its properties."""

    leader: AttemptRef
    checkpoint_id: int
    location: str
    metadata: FileStateHandle
    properties: CheckpointProperties
    completed_at: datetime
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    operators: int = 0
    """Number of operators with state."""
    version: int | None = None
    """Version of the handle whose properties are replaced; ``None`` to add a handle."""

    def __post_init__(self) -> None:
        require("completed_at", self.completed_at, lambda time: time.tzinfo is not None, "a time with a time zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """The handles of a leader, oldest first."""

    live: tuple[CheckpointRecord, ...]
    removed: tuple[int, ...]
    """Ids of the removed handles whose files await deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """A request and its checkpoint, ``None`` without a row."""

    request: CheckpointRequest | None = None
    checkpoint: CheckpointRecord | None = None
    """The completed checkpoint."""
