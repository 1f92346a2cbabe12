"""
Records of a job in the store: operators, attempts, checkpoints, requests and time.

The time of a job increases with each transaction, even if the clocks of two servers differ slightly. A clock that was
far ahead and has been corrected is the exception: the job follows the corrected clock, and times in its rows that are
in the future are clamped, in their order. Otherwise all timeouts of the job would stop until the clock catches up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.ids import JobId, OfOperator, OperatorId
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    RestoreSource,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

LONGEST_LEAD = timedelta(minutes=5)
"""Maximum lead of a job's time over the clock, which exceeds usual clock differences between servers."""
SHORTEST_STEP = timedelta(microseconds=1)
"""Time that passes in a transaction while the clock is behind the time of the job; the resolution of databases."""
_COMPRESSION = 1000
"""Divides the distances of clamped times, so that the times of before the clock was ahead remain the earlier ones."""
ROLLED_BACK = "rolled back"
"""Why no state contains the work of a checkpoint that was complete."""
_TRY_IN_LABEL = re.compile(r", try (\d{1,9})$")
SCRIPT_PREFIX = "script/"
"""Prefix of the logical task of a script or notebook."""


class CheckpointStatus(StrEnum):
    """Status of a checkpoint. A checkpoint ends exactly once."""

    PENDING = "pending"
    """Triggered; its files may be incomplete."""
    FINALIZING = "finalizing"
    """All operators of an aligned checkpoint have acknowledged; its metadata is being written."""
    COMPLETED = "completed"
    """Acknowledged and retained; it may be restored."""
    SUBSUMED = "subsumed"
    """Replaced by a later checkpoint and no longer restorable."""
    DISPOSED = "disposed"
    """Savepoint that its owner disposed of."""
    ABORTED = "aborted"
    """Ended before it was complete."""


class AttemptStatus(StrEnum):
    """Status of an attempt."""

    RUNNING = "running"
    FINISHED = "finished"
    """The stage succeeded."""
    FAILED = "failed"
    """The stage failed and reported its error."""
    FENCED = "fenced"
    """A newer attempt registered before this one had ended."""


class OnClear(StrEnum):
    """Behaviour of a task that was cleared, in contrast to one that Airflow retries."""

    RESUME_UNCHANGED = "resume_unchanged"
    """Restore the steps whose code did not change; start over after a success."""
    RESUME = "resume"
    """Restore all steps, even those whose code changed."""
    RESTART = "restart"
    """Restart the run."""


class TaskState(StrEnum):
    """How Airflow's task state store has kept the entries of the earlier tries of a task."""

    UNKNOWN = ""
    """The store is not used."""
    PRESENT = "present"
    """The entries are there; Airflow does not ask whether to keep them."""
    KEPT = "kept"
    """The entries are there, although Airflow discards them by default when a task is cleared."""
    DISCARDED = "discarded"
    """There are no entries."""


class OnOverlap(StrEnum):
    """Behaviour of a task while another task or run is running the same operator."""

    FAIL = "fail"
    """Fail at once."""
    WAIT = "wait"
    """Wait until the other attempt has ended."""


class Transport(StrEnum):
    """How the driver of an attempt calls the coordinator."""

    IN_PROCESS = "in_process"
    """In its own process, which has access to the rows."""
    HTTP = "http"
    """Over the network, with a token."""
    MAILBOX = "mailbox"
    """Through files of the checkpoint storage, which the task relays."""

    @property
    def text(self) -> str:
        """The transport in a sentence."""
        return {"in_process": "in process", "http": "over HTTP", "mailbox": "through a mailbox"}[self]


class TaskCoordinates(NamedTuple):
    """A task instance in Airflow, for all its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    """Index among the instances of a mapped task; -1 for a task that is not mapped."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Self | None:
        """Return the coordinates in the form of rows and messages; ``None`` if they name no task."""
        values = {"map_index": "-1"} | dict(pairs)
        if not values.keys() >= {"dag_id", "run_id", "task_id"}:
            return None
        return cls(values["dag_id"], values["run_id"], values["task_id"], int(values["map_index"]))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Names and values, the form in rows and messages."""
        return tuple((name, str(value)) for name, value in self._asdict().items())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOwner:
    """Task or script that runs an attempt, which distinguishes retries, clears and rival tasks."""

    logical_task: str
    """Task without its run and try: ``dag_id/task_id`` and map key, or the name of a script."""
    run_key: str
    """Logical date, else the key of the partition, else the run id."""
    run_id: str
    clear_marker: str
    """Value that changes when the task is cleared, but not when it is retried."""
    label: str
    """Display name, with which a user finds the task in the Airflow UI."""
    airflow: tuple[tuple[str, str], ...] = ()
    """Coordinates of the task instance as :attr:`TaskCoordinates.pairs`; empty outside Airflow."""
    ti_id: str = ""
    """Airflow's id of the task instance, which is another one for each try; empty if unknown."""
    is_of_partition: bool = False
    """Whether the run key is that of a partition, which several runs may process."""
    partition_date: str = ""
    """Date of the partition in ISO format, which orders runs; empty without one."""
    task_state: TaskState = TaskState.UNKNOWN
    """What a clear has done to the task state; also tells whether later tries find an entry of this one."""
    try_number: int | None = None
    """Number of Airflow's try; ``None`` for an attempt that no task has started."""
    transport: Transport | None = None
    """How the driver calls the coordinator; ``None`` if unknown, as in rows of earlier versions."""

    def __post_init__(self) -> None:
        # Rows and drivers of earlier versions have the number in the label only.
        stated = _TRY_IN_LABEL.search(self.label) if self.airflow and self.try_number is None else None
        if stated is not None:
            object.__setattr__(self, "try_number", int(stated[1]))

    @property
    def task(self) -> TaskCoordinates | None:
        """The task instance; ``None`` outside Airflow."""
        return TaskCoordinates.of(self.airflow)

    @property
    def dag_id(self) -> str | None:
        """The Dag of the task; ``None`` for a script or a recovered job."""
        return dict(self.airflow).get("dag_id") or None

    @property
    def is_script(self) -> bool:
        """Whether a script or notebook runs the attempt; it is neither retried nor cleared."""
        return not self.airflow and self.logical_task.startswith(SCRIPT_PREFIX)


class RowsVersion(NamedTuple):
    """
    Version of the rows of a job; a later one is greater.

    A job in a database that was restored from a backup reaches the same number again, with other rows. The time tells
    the two versions apart.
    """

    number: int
    """Number of transactions of the job."""
    seen_at: datetime
    """Time of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Row of a job."""

    job_id: JobId
    name: str
    version: int
    """Number of transactions; each one updates it first, which serializes the writers of a job."""
    next_checkpoint_id: int
    seen_at: datetime
    """Time of the latest transaction; see :func:`time_of_job`."""
    created_at: datetime

    @property
    def rows_version(self) -> RowsVersion:
        """The version of the rows of the job."""
        return RowsVersion(self.version, self.seen_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord(OfOperator):
    """Row of a stateful operator of a job, with its fencing epoch."""

    job_id: JobId
    operator_id: OperatorId
    uid: str
    epoch: int
    """Epoch of the newest attempt; writes of attempts with a lower epoch are rejected."""
    generation: int
    """Number of fresh starts; only checkpoints of the current generation are restored."""
    first_run: str = ""
    """Run that started the generation; empty if unknown."""
    damaged_snapshots: tuple[str, ...] = ()
    """URIs of damaged snapshots of this generation, in the order of their detection."""
    next_restore: int | None = None
    """Checkpoint that a user chose for the next attempt, which retention keeps; ``None`` for the newest one."""
    pinned_checkpoint: int | None = None
    """
    Checkpoint that is copied to a savepoint of the whole job, which retention keeps until then; ``None`` for none.
    """
    in_place_restore: str | None = None
    """Key of the restore in place that attempts take until one of them completes a checkpoint; ``None`` for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord(OfOperator):
    """Row of an attempt to run an operator."""

    job_id: JobId
    operator_id: OperatorId
    epoch: int
    attempt_key: str
    generation: int
    status: AttemptStatus
    owner: AttemptOwner
    start_reason: str
    restored_from: int | None
    """Id of the restored checkpoint, which is pinned until the attempt ends."""
    storage_base: str
    num_retained: int
    checkpoint_timeout_seconds: float
    registered_at: datetime
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    retained_runs: int = 1
    is_restore_chosen: bool = False
    """
    Whether a user chose the checkpoint to restore, for this attempt or for one before it that completed none.

    No older checkpoint may be restored in its place.
    """
    ended_at: datetime | None = None
    message: str = ""
    restored_summary: CheckpointSummary | None = None
    """
    What the attempt has restored so far, the time that this saved, and what it is working on; ``None`` if it has
    reported nothing.
    """

    @property
    def is_running(self) -> bool:
        """Whether the attempt has not ended."""
        return self.status is AttemptStatus.RUNNING

    def ran_at(self, time: datetime) -> bool:
        """Return whether the attempt had begun at a time and not ended."""
        return self.registered_at <= time and (self.ended_at is None or self.ended_at > time)

    def should_stop_with(self, savepoint: CheckpointRecord, checkpoints: Iterable[CheckpointRecord]) -> bool:
        """
        Return whether a complete savepoint that suspends the stage or its job concerns the attempt.

        It was triggered while the attempt ran, or after it had failed, or the attempt has waited for it.

        :param checkpoints: Checkpoints of the operator.
        """
        is_unfinished = self.status is not AttemptStatus.FINISHED
        if savepoint.operator_id == self.operator_id:
            return is_unfinished and self.epoch == savepoint.epoch
        if self.ran_at(savepoint.triggered_at) or (is_unfinished and self.registered_at < savepoint.triggered_at):
            return True
        return any(c.epoch == self.epoch and c.was_completed_during(savepoint) for c in checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(OfOperator):
    """Row of a checkpoint of an operator."""

    job_id: JobId
    checkpoint_id: int
    operator_id: OperatorId
    epoch: int
    generation: int
    status: CheckpointStatus
    request_key: str
    """Key of the trigger request; ``_metadata`` repeats it, which detects a foreign checkpoint with the same id."""
    location: str
    """Exclusive directory of the checkpoint."""
    triggered_at: datetime
    """
    Time of the trigger; after the end of the checkpoint, the time at which it started, without the increment before.
    """
    expires_at: datetime
    run_key: str = ""
    """Run that took the checkpoint; empty if unknown."""
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    is_periodic: bool = False
    finalizer: str | None = None
    """
    Coordinator that triggers an aligned checkpoint, then the call that assigned the writing of its metadata until the
    lease expires, and after the end the key of the call that aborted it or left it to the user.
    """
    lease_until: datetime | None = None
    completed_at: datetime | None = None
    ended_at: datetime | None = None
    """Time at which the checkpoint was subsumed, disposed or aborted."""
    discarded_at: datetime | None = None
    """Time at which the deletion of its files was confirmed."""
    metadata_uri: str | None = None
    metadata_size: int = 0
    metadata_sha256: str = ""
    state_size_bytes: int = 0
    """Bytes that this checkpoint added."""
    full_size_bytes: int = 0
    """Bytes that a restore from this checkpoint may read."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of entries by kind, for display. Statistics keep them after the row is removed."""
    summary: CheckpointSummary | None = None
    """The entries and durations, for display; ``None`` before the completion and for rows of older versions."""
    failure_reason: str | None = None
    failure_message: str = ""
    unusable_reason: str | None = None
    """
    Reason why a restore skipped the checkpoint, which then does not count towards retention; ``ROLLED_BACK`` after a
    rollback.

    The state does not contain the work of such a checkpoint.
    """
    has_open_commit: bool = False
    """Whether a sink must still commit the output of the checkpoint and confirm the commit."""

    @property
    def is_of_user(self) -> bool:
        """Whether it is a savepoint of a user, in contrast to one from which the operator has started."""
        return self.properties.is_savepoint and not self.properties.unclaimed

    @property
    def is_restorable(self) -> bool:
        """Whether a restore may choose the checkpoint; a savepoint is restored only on request."""
        return self.status is CheckpointStatus.COMPLETED and not self.is_of_user

    @property
    def is_usable(self) -> bool:
        """Whether a restore may choose the checkpoint, and none has found it damaged."""
        return self.is_restorable and self.unusable_reason is None

    def is_after(self, savepoint: CheckpointRecord) -> bool:
        """Return whether the checkpoint was completed after a savepoint of the whole job was triggered."""
        # Ids order a checkpoint that was triggered and completed within the resolution of the clock.
        completed = (self.completed_at or self.triggered_at, self.checkpoint_id)
        return completed > (savepoint.triggered_at, savepoint.checkpoint_id)

    def was_completed_during(self, savepoint: CheckpointRecord) -> bool:
        """Return whether the checkpoint was completed while a savepoint that suspends the whole job was pending."""
        if self.completed_at is None or savepoint.completed_at is None or self.is_of_user:
            return False
        return self.is_after(savepoint) and self.completed_at < savepoint.completed_at

    @property
    def is_in_progress(self) -> bool:
        """Whether the checkpoint is neither complete nor aborted."""
        return self.status in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)

    @property
    def has_ended(self) -> bool:
        """Whether the checkpoint was subsumed, disposed or aborted."""
        return self.status in (CheckpointStatus.SUBSUMED, CheckpointStatus.ABORTED, CheckpointStatus.DISPOSED)

    @property
    def is_adoption(self) -> bool:
        """Whether it is a start from a savepoint whose restore is not confirmed yet."""
        return self.status is CheckpointStatus.PENDING and self.properties.unclaimed

    @property
    def is_unconfirmed(self) -> bool:
        """
        Whether it is a start from a savepoint whose restore is not confirmed, also if its attempt has ended.
        """
        return self.is_adoption or (self.status is CheckpointStatus.ABORTED and self.properties.unclaimed)

    @property
    def awaits_commit(self) -> bool:
        """
        Whether a sink must commit its output.

        The sink retracts the output of a skipped checkpoint instead.
        """
        is_open = self.has_open_commit and self.unusable_reason is None
        return is_open and self.status is CheckpointStatus.COMPLETED

    @property
    def awaits_discard(self) -> bool:
        """Whether its files must be deleted and the deletion is not confirmed."""
        if self.discarded_at is not None or self.properties.unclaimed:
            return False
        if self.status is CheckpointStatus.SUBSUMED:
            return self.properties.discard_on_subsumed
        return self.status in (CheckpointStatus.ABORTED, CheckpointStatus.DISPOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementRecord(OfOperator):
    """Acknowledgement of an aligned checkpoint by one operator, which covers all its subtasks."""

    job_id: JobId
    checkpoint_id: int
    operator_id: OperatorId
    attempt_id: str
    """Try of the operator's task that must acknowledge."""
    is_finished: bool = False
    """Whether the operator had finished before the trigger, and therefore does not acknowledge."""
    manifest_uri: str | None = None
    """Manifest of its state; ``None`` before the acknowledgement and for an operator without state."""
    manifest_size: int = 0
    manifest_sha256: str = ""
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    metrics: dict[str, int] = field(default_factory=dict)
    acknowledged_at: datetime | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the operator has acknowledged or does not need to."""
        return self.is_finished or self.acknowledged_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRecord:
    """Row of the checkpoint statistics of an operator, of bounded size."""

    job_id: JobId
    operator_id: OperatorId
    content: dict[str, Any] = field(default_factory=dict)


class RequestStatus(StrEnum):
    """Status of a request for a checkpoint or a savepoint. A request ends exactly once."""

    QUEUED = "queued"
    RUNNING = "running"
    """The checkpoint was triggered."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether the request is queued or running."""
        return self in (RequestStatus.QUEUED, RequestStatus.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(OfOperator):
    """Row of a request for a checkpoint or savepoint of an operator."""

    job_id: JobId
    request_key: str
    """Idempotency key of the client."""
    operator_id: OperatorId
    properties: CheckpointProperties
    target: str | None = None
    """Parent directory of a savepoint; ``None`` for the configured one."""
    is_periodic: bool = False
    requested_by: str = ""
    """Display name of the requester."""
    requested_at: datetime
    status: RequestStatus = RequestStatus.QUEUED
    checkpoint_id: int | None = None
    """Id of the checkpoint that was triggered for the request."""
    ended_at: datetime | None = None
    failure_reason: str | None = None
    failure_message: str = ""
    failed_by: str | None = None
    """Key of the request for which the full queue refused this one; a repeated call finds it again."""


class JobAction(StrEnum):
    """Action on the state of a job that a user requests on its page."""

    SAVEPOINT = "savepoint"
    """Take a savepoint of an operator."""
    STOP = "stop"
    """Take a savepoint of an operator and stop its stage."""
    RESTORE = "restore"
    """Let the next attempt of an operator restore a checkpoint."""
    WITHDRAW = "withdraw"
    """Let the next attempt of an operator restore its newest checkpoint again."""
    REWIND = "rewind"
    """Rewind the job to its state before a run."""
    DISPOSE = "dispose"
    """Dispose of a savepoint."""
    PRUNE = "prune"
    """Remove the job with its files."""
    FORK = "fork"
    """Start a run that works on a copy of the state at a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceRestore:
    """Start of the next attempts of an operator from a savepoint of its whole job."""

    pointer: str
    """Directory of the savepoint."""
    source: RestoreSource | None = None
    """Member of the operator in the savepoint; ``None`` if it has none, and starts without state."""
    first_run: str = ""
    """Run that started the generation of the member; empty if unknown."""
    earlier_generation: int
    """Generation of the operator before the restore."""
    earlier_first_run: str = ""
    """Run that started that generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """Row of an action that a user requested. Savepoints have the row of a ``CheckpointRequest`` instead."""

    job_id: JobId
    request_key: str
    """Idempotency key of the page."""
    action: JobAction
    operator_id: OperatorId | None = None
    """Operator that it concerns; ``None`` for all operators of the job."""
    checkpoint_id: int | None = None
    """Checkpoint to restore or to fork from, or savepoint to dispose of."""
    run_key: str = ""
    """Run before which the job is rewound, or id of the run that a fork has started."""
    restore: InPlaceRestore | None = None
    """Restore in place; ``None`` for all other actions."""
    requested_by: str
    """Name of the user."""
    requested_at: datetime
    status: RequestStatus = RequestStatus.QUEUED
    ended_at: datetime | None = None
    message: str = ""
    """Outcome, for display."""


class Clock(Protocol):
    """Source of time-zone aware UTC time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""


class SystemClock:
    """System clock of the machine."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)


def time_of_job(seen_at: datetime, now: datetime) -> datetime:
    """
    Return the current time of a job.

    :param seen_at: Time of the latest transaction of the job.
    """
    return now if is_too_far_ahead(seen_at, now) else max(seen_at, now)


def is_too_far_ahead(time: datetime, now: datetime) -> bool:
    """Return whether a recorded time is so far in the future that the clock must have been wrong."""
    return time > now + LONGEST_LEAD


def clamp_times(record: Record, seen_at: datetime, now: datetime) -> Record:
    """
    Return a record whose times are not later than now, in the same order.

    A timeout keeps its duration, and a lease expires.

    :param seen_at: Time of the latest transaction of the job, by the clock that was ahead.
    :param now: Time of the corrected clock.
    """
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    future = {name: value for name, value in values.items() if isinstance(value, datetime) and value > now}
    clamped = {name: now - max(seen_at - value, timedelta(0)) / _COMPRESSION for name, value in future.items()}
    if "expires_at" in clamped:
        clamped["expires_at"] = future["expires_at"] - (
            future.get("triggered_at", now) - clamped.get("triggered_at", now)
        )
    return replace(record, **clamped)
