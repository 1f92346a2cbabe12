"""The job store: transactions on the rows of a job, and the job as read at one moment."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.layout import job_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, require
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
    StatisticsRecord,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.retention import EndedAttempts, EndedCheckpoints


RECENT = 100
"""How many of the newest checkpoints and requests a view holds whatever became of them."""
LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """
    Which checkpoints of a job to list, newest first.

    :raises InvalidConfigurationError: for a number out of range.
    """

    before: int | None = None
    """Only those with a lower id, such as the last one of the page before; ``None`` for the newest."""
    limit: int = RECENT
    operator_id: OperatorId | None = None
    status: CheckpointStatus | None = None

    def __post_init__(self) -> None:
        require("before", self.before, lambda i: i is None or 0 < i <= _HIGHEST_ID, "a checkpoint id, 1 or more")
        require("limit", self.limit, lambda n: 1 <= n <= LARGEST_PAGE, f"from 1 to {LARGEST_PAGE}")

    def includes(self, checkpoint: CheckpointRecord) -> bool:
        """Tell whether a checkpoint may be on the page."""
        return (
            (self.before is None or checkpoint.checkpoint_id < self.before)
            and self.operator_id in (None, checkpoint.operator_id)
            and self.status in (None, checkpoint.status)
        )


_HIGHEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """
    One job with its operators, attempts and checkpoints, each in the order they came.

    Its size does not grow with the history of checkpoints: those whose bytes are confirmed to be gone are left out, as are
    requests that have ended, except for the :data:`RECENT` newest of each. A ``CheckpointPage`` lists the others.
    """

    job: JobRecord
    operators: tuple[OperatorRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    """All whose bytes may exist, and the newest of the others."""
    read_at: datetime
    """That moment by the store's clock, which is also the one of all other times here; never before ``job.seen_at``."""
    requests: tuple[SnapshotRequest, ...] = ()
    """All that have not ended, and the newest of the others."""
    statistics: tuple[StatisticsRecord, ...] = ()
    handle_uris: tuple[str, ...] | None = None
    """Where the state under handles lies; ``None`` where nobody knows, because a handle cannot be read."""

    def savepoints_asked_of(self, operator_id: OperatorId) -> tuple[SnapshotRequest, ...]:
        """Return the savepoints that an operator is asked for and nobody has begun."""
        mine = (r for r in self.requests if r.operator_id == operator_id and r.status is RequestStatus.QUEUED)
        return tuple(r for r in mine if r.properties.is_savepoint)

    def of_operator(self, operator_id: OperatorId) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of one operator, oldest first."""
        return tuple(c for c in self.checkpoints if c.operator_id == operator_id)

    def directories_of(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the directories that may hold what the checkpoints of an operator name, as the job's rows say."""
        rows = (c.location for c in self.of_operator(operator_id) if c.discarded_at is None)
        bases = (job_uri(a.storage_base, a.job_id) for a in self.attempts if a.operator_id == operator_id)
        return tuple(dict.fromkeys((*rows, *bases)))

    def current_attempt(self, operator: OperatorRecord) -> AttemptRecord | None:
        """Return the attempt that holds the operator's epoch."""
        mine = (a for a in self.attempts if (a.operator_id, a.epoch) == (operator.operator_id, operator.epoch))
        return next(mine, None)

    def has_open_attempt(self, operator: OperatorRecord) -> bool:
        """Tell whether the newest attempt of an operator has not said that it ended."""
        attempt = self.current_attempt(operator)
        return attempt is not None and attempt.status is AttemptStatus.RUNNING


class JobTransaction(Protocol):
    """
    One transition of one job.

    It began with a write to the job's row, so no other writer of this job is between its read and its commit.
    Leaving the context without an error commits; an error rolls everything back.
    """

    @property
    def now(self) -> datetime:
        """
        Return the time of this transition.

        It is not before that of an earlier one of this job, unless the clock was far ahead then and was set right: in that
        case the rows were dated anew, and none of them is dated later than this.
        """
        ...

    @property
    def job(self) -> JobRecord:
        """Return the job's row."""
        ...

    def draw_checkpoint_id(self) -> int:
        """Return the next id of the job, 1 at first, never given out twice."""
        ...

    def set_next_checkpoint_id(self, following: int) -> None:
        """Make a number the next id of the job."""
        ...

    def operator(self, operator_id: OperatorId) -> OperatorRecord | None:
        """Return an operator of the job."""
        ...

    def operators_besides(self, task_uids: AbstractSet[str]) -> list[tuple[OperatorRecord, AttemptRecord | None]]:
        """
        Return the operators whose uid none of the given tasks has, each with its newest attempt, by uid.

        :param task_uids: Uids of tasks, which stand for those of their mapped instances too.
        """
        ...

    def save_operator(self, record: OperatorRecord) -> None:
        """Insert or replace an operator."""
        ...

    def attempt(self, operator_id: OperatorId, epoch: int) -> AttemptRecord | None:
        """Return an attempt by its epoch."""
        ...

    def attempt_by_key(self, attempt_key: str) -> AttemptRecord | None:
        """Return an attempt by the key its client made."""
        ...

    def last_attempt_of_run(self, operator_id: OperatorId, run_key: str) -> AttemptRecord | None:
        """Return the newest attempt that a run made of an operator."""
        ...

    def storage_bases(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the checkpoint directories of the attempts of an operator, each once, sorted."""
        ...

    def ended_attempts(self, wanted: EndedAttempts, limit: int | None) -> tuple[int, ...]:
        """Return the epochs of ended attempts, oldest first, at most so many."""
        ...

    def save_attempt(self, record: AttemptRecord) -> None:
        """Insert or replace an attempt."""
        ...

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of the job."""
        ...

    def checkpoint_by_request(self, request_key: str) -> CheckpointRecord | None:
        """Return a checkpoint by the key its client made."""
        ...

    def open_checkpoints(self, operator_id: OperatorId) -> list[CheckpointRecord]:
        """Return the checkpoints of an operator that are pending, completed or await their discard, oldest first."""
        ...

    def discarded_checkpoints(self, wanted: EndedCheckpoints, limit: int | None) -> tuple[int, ...]:
        """Return the ids of ended checkpoints whose bytes are confirmed to be gone, at most so many."""
        ...

    def has_completed(self, operator_id: OperatorId, generation: int | None = None) -> bool:
        """
        Tell whether there is a row of a checkpoint that an operator completed, retained or not.

        :param generation: The generation that completed it; ``None`` for any.
        """
        ...

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        """Insert a checkpoint."""
        ...

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        """
        Replace a checkpoint if its status is still the expected one.

        :raises CoordinatorError: if it is not; the transaction must be given up.
        """
        ...

    def acknowledgements(self, checkpoint_id: int) -> list[AcknowledgementRecord]:
        """Return the parts that operators have in an aligned checkpoint."""
        ...

    def save_acknowledgement(self, record: AcknowledgementRecord) -> None:
        """Insert or replace the part of an operator."""
        ...

    def request(self, request_key: str) -> SnapshotRequest | None:
        """Return a request by the key its client made."""
        ...

    def open_requests(self, operator_id: OperatorId) -> list[SnapshotRequest]:
        """Return the requests to an operator that have not ended, oldest first."""
        ...

    def ended_requests(self, operator_id: OperatorId, before: datetime, limit: int | None) -> tuple[str, ...]:
        """Return the keys of the requests to an operator that ended before a time, at most so many."""
        ...

    def save_request(self, record: SnapshotRequest) -> None:
        """Insert or replace a request."""
        ...

    def remove_requests(self, request_keys: tuple[str, ...]) -> None:
        """Remove the rows of requests."""
        ...

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return who claimed a snapshot, of whatever job."""
        ...

    def save_claim(self, record: ClaimRecord) -> None:
        """
        Insert a claim.

        :raises SnapshotClaimedError: if another operator claimed it before.
        """
        ...

    def statistics(self, operator_id: OperatorId) -> StatisticsRecord | None:
        """Return what is kept of an operator's checkpoints."""
        ...

    def save_statistics(self, record: StatisticsRecord) -> None:
        """Insert or replace what is kept of an operator's checkpoints."""
        ...

    def view(self) -> JobView:
        """Return the job as this transition left it so far."""
        ...

    def remove_checkpoints(self, checkpoint_ids: tuple[int, ...]) -> None:
        """Remove the rows of checkpoints."""
        ...

    def remove_attempts(self, attempts: tuple[AttemptRef, ...]) -> None:
        """Remove the rows of attempts and of the tokens that mean them."""
        ...

    def remove_state_handles(self) -> None:
        """Remove every state handle of the job and its locks; what they point to is an orphan then."""
        ...

    def remove_job(self) -> None:
        """
        Remove every attempt, checkpoint, request, statistic and token of the job; nothing may follow in this transition.

        What counts stays, hidden: no epoch, generation or checkpoint id may be given out twice, for whoever read the rows
        before would take what comes next for what was there.
        """
        ...


class JobStore(Protocol):
    """
    The rows of all jobs; a job that has no attempt is none.

    Reads outside a transaction see committed rows only.
    """

    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> AbstractContextManager[JobTransaction]:
        """
        Begin a transition of a job.

        :param create_as: Name under which to create the job if there is none.
        :raises CheckpointNotFoundError: if there is no such job and none is to be created.
        :raises CommitStateUnknownError: on leaving, if the commit may or may not have taken effect.
        """
        ...

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return who claimed a snapshot, of whatever job."""
        ...

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        ...

    def describe(self, job_id: JobId) -> JobView:
        """
        Return a job as it stands, all of it read at one moment.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        ...

    def request(self, job_id: JobId, request_key: str) -> SnapshotRequest | None:
        """Return a request of a job by the key its client made."""
        ...

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job."""
        ...

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        ...

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """
        Return the checkpoint that a restore of an operator would start from, ``None`` if it has none.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        ...
