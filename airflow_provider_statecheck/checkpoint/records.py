"""Records of a job in the store: operators, attempts, checkpoints, requests and acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy

SCRIPT_PREFIX = "script/"
"""Begins the logical task of a script or notebook."""


class CheckpointStatus(StrEnum):
    """The life of a checkpoint; it ends exactly once."""

    PENDING = "pending"
    """Triggered; its bytes may be incomplete."""
    FINALIZING = "finalizing"
    """Every operator of an aligned one has answered; its metadata is being written."""
    COMPLETED = "completed"
    """Acknowledged and retained; a restore may start from it."""
    SUBSUMED = "subsumed"
    """A later one took its place; nothing restores from it any more."""
    DISPOSED = "disposed"
    """A savepoint that its owner gave up."""
    ABORTED = "aborted"
    """It was never complete."""


class AttemptStatus(StrEnum):
    """The life of one try of a stage."""

    RUNNING = "running"
    FINISHED = "finished"
    """The stage came to its end."""
    FAILED = "failed"
    """The stage ended with an error that it could still report."""
    FENCED = "fenced"
    """A newer attempt took over while this one had not ended."""


class OnClear(StrEnum):
    """What a task does that was cleared, in contrast to one that Airflow retries."""

    RESUME_UNCHANGED = "resume_unchanged"
    """Keep the steps whose code did not change; after a success start over."""
    RESUME = "resume"
    """Keep every step, changed or not."""
    RESTART = "restart"
    """Begin the run again."""


class OnOverlap(StrEnum):
    """What a task does while the same operator still runs for another task or run."""

    FAIL = "fail"
    """Fail at once."""
    WAIT = "wait"
    """Wait for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOwner:
    """Who runs an attempt, as far as retries, clears and rivals must be told apart."""

    logical_task: str
    """The task without its run and try: ``dag_id/task_id`` and map key, or a script's name."""
    run_key: str
    """The logical date, else the run id."""
    run_id: str
    clear_marker: str
    """Changes when the task is cleared, stays the same when it is retried."""
    label: str
    """For people: what to look for in the Airflow UI."""
    airflow: tuple[tuple[str, str], ...] = ()
    """Airflow's coordinates of the task instance (``dag_id``, ``run_id``, ``task_id``, ``map_index``), empty outside."""

    @property
    def is_script(self) -> bool:
        """Tell whether a script or notebook runs the attempt; it is started again, never retried or cleared."""
        return not self.airflow and self.logical_task.startswith(SCRIPT_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The unit of recovery."""

    job_id: JobId
    name: str
    version: int
    """Grows with each transition; its update is what makes writers of one job wait for each other."""
    next_checkpoint_id: int
    seen_at: datetime
    """The time of the latest transition, as :mod:`~airflow_provider_statecheck.checkpoint.clock` has it."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """A stateful step of a job and its fence."""

    job_id: JobId
    operator_id: OperatorId
    uid: str
    epoch: int
    """The epoch of the newest attempt; nothing of a lower one may change anything."""
    generation: int
    """Grows with each fresh start; only checkpoints of the current generation are restored."""
    first_run: str = ""
    """The run that began the generation; empty where that is not known."""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of snapshots of this generation that an attempt found to be damaged, the latest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try of a stage."""

    job_id: JobId
    operator_id: OperatorId
    epoch: int
    attempt_key: str
    generation: int
    status: AttemptStatus
    owner: AttemptOwner
    start_reason: str
    restored_from: int | None
    """The checkpoint that the attempt started from; pinned until the attempt ends."""
    storage_base: str
    num_retained: int
    checkpoint_timeout_seconds: float
    registered_at: datetime
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    retained_runs: int = 1
    ended_at: datetime | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint of one operator."""

    job_id: JobId
    checkpoint_id: int
    operator_id: OperatorId
    epoch: int
    generation: int
    status: CheckpointStatus
    request_key: str
    """Made by the client that triggered it; ``_metadata`` repeats it, which tells the checkpoint from another's of the same id."""
    location: str
    """The directory that belongs to this checkpoint alone."""
    triggered_at: datetime
    """When its id was drawn; once it has ended, when it began itself, after the increment for which the id was drawn."""
    expires_at: datetime
    run_key: str = ""
    """The run that took it; empty where that is not known."""
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    is_periodic: bool = False
    finalizer: str | None = None
    """Who writes the metadata of an aligned one, until its lease ends."""
    lease_until: datetime | None = None
    completed_at: datetime | None = None
    ended_at: datetime | None = None
    """When it was subsumed or aborted."""
    discarded_at: datetime | None = None
    """When its bytes were confirmed to be gone."""
    metadata_uri: str | None = None
    metadata_size: int = 0
    metadata_sha256: str = ""
    state_size_bytes: int = 0
    """Bytes that are new in this checkpoint."""
    full_size_bytes: int = 0
    """Bytes that a restore from this checkpoint may read."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many of each kind it holds, for people."""
    failure_reason: str | None = None
    failure_message: str = ""
    unusable_reason: str | None = None
    """Why a restore could not use it; it no longer counts towards retention."""
    has_open_commit: bool = False
    """Whether it holds what a sink has to commit and nobody has confirmed that it did."""

    @property
    def is_restorable(self) -> bool:
        """Tell whether a restore may start from it; a savepoint is restored only where it is named."""
        is_own = not self.properties.is_savepoint or self.properties.unclaimed
        return self.status is CheckpointStatus.COMPLETED and is_own

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing restores from it any more."""
        return self.status in (CheckpointStatus.SUBSUMED, CheckpointStatus.ABORTED, CheckpointStatus.DISPOSED)

    @property
    def is_adoption(self) -> bool:
        """Tell whether it is a snapshot that an attempt begins from and has not yet confirmed to have restored."""
        return self.status is CheckpointStatus.PENDING and self.properties.unclaimed

    @property
    def awaits_commit(self) -> bool:
        """Tell whether a sink has to commit what it holds; what a restore passed over is retracted by the sink instead."""
        is_open = self.has_open_commit and self.unusable_reason is None
        return is_open and self.status is CheckpointStatus.COMPLETED

    @property
    def awaits_discard(self) -> bool:
        """Tell whether its bytes are to be deleted and nobody has confirmed that they are."""
        if self.discarded_at is not None or self.properties.unclaimed:
            return False
        if self.status is CheckpointStatus.SUBSUMED:
            return self.properties.discard_on_subsumed
        return self.status in (CheckpointStatus.ABORTED, CheckpointStatus.DISPOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementRecord:
    """The part that one operator has in a checkpoint of several; its state is on storage, however many subtasks it has."""

    job_id: JobId
    checkpoint_id: int
    operator_id: OperatorId
    attempt_id: str
    """Which try of the operator's task is to answer."""
    is_finished: bool = False
    """Whether the operator had ended when the checkpoint was triggered, and so has nothing to answer."""
    manifest_uri: str | None = None
    """Where its state is described; ``None`` until it answers, and for an operator without state."""
    manifest_size: int = 0
    manifest_sha256: str = ""
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    metrics: dict[str, int] = field(default_factory=dict)
    acknowledged_at: datetime | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Tell whether nothing is expected of the operator any more."""
        return self.is_finished or self.acknowledged_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRecord:
    """Counts, summaries and latest checkpoints of one operator, of bounded size."""

    job_id: JobId
    operator_id: OperatorId
    content: dict[str, Any] = field(default_factory=dict)


class RequestStatus(StrEnum):
    """The life of a request; it ends exactly once."""

    QUEUED = "queued"
    RUNNING = "running"
    """Its checkpoint was triggered."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Tell whether it has not ended."""
        return self in (RequestStatus.QUEUED, RequestStatus.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Somebody wants a checkpoint or savepoint of an operator; whoever can take it does."""

    job_id: JobId
    request_key: str
    """Made by the client; the same key is the same request."""
    operator_id: OperatorId
    properties: CheckpointProperties
    target: str | None = None
    """Directory below which a savepoint is to be written; ``None`` for the configured one."""
    is_periodic: bool = False
    requested_by: str = ""
    """For people."""
    requested_at: datetime
    status: RequestStatus = RequestStatus.QUEUED
    checkpoint_id: int | None = None
    """The checkpoint that was triggered for it."""
    ended_at: datetime | None = None
    failure_reason: str | None = None
    failure_message: str = ""
