"""Interfaces of the job store: transactions on the rows of a job, and consistent views of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, ALIGNED_UID, JobId, OperatorId, job_uri
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobsPage, is_of_unknown_dag
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
    RequestStatus,
    RowsVersion,
    StatisticsRecord,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

RECENT = 100
"""Number of the newest checkpoints and requests that a view contains regardless of their status."""
LARGEST_PAGE = 1000
KNOWN_RUNS = 10_000
"""Number of the newest runs of a generation for which the rows tell that they have advanced the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """
    Page and filter of a list of checkpoints, newest first.

    :raises InvalidConfigurationError: for a number out of range.
    """

    before: int | None = None
    """
    Exclusive upper bound of the ids, such as the last id of the previous page; ``None`` for the newest checkpoints.
    """
    limit: int = RECENT
    operator_id: OperatorId | None = None
    status: CheckpointStatus | None = None

    def __post_init__(self) -> None:
        require("before", self.before, lambda i: i is None or 0 < i <= _HIGHEST_ID, "a checkpoint id, 1 or more")
        require("limit", self.limit, lambda n: 1 <= n <= LARGEST_PAGE, f"from 1 to {LARGEST_PAGE}")


_HIGHEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """
    Consistent view of a job with its operators, attempts and checkpoints, each in order of creation.

    The size of a view does not grow with the history of the job. Of the discarded checkpoints and the ended requests it
    contains only the ``RECENT`` newest. A ``CheckpointPage`` lists the others.
    """

    job: JobRecord
    operators: tuple[OperatorRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    """Checkpoints whose files may exist, and the newest discarded ones."""
    read_at: datetime
    """Time of the view by the store's clock, never before ``job.seen_at``."""
    requests: tuple[CheckpointRequest, ...] = ()
    """Open requests, and the newest ended ones."""
    actions: tuple[ActionRecord, ...] = ()
    """Open actions of users, and the newest ended ones."""
    statistics: tuple[StatisticsRecord, ...] = ()

    @property
    def dag_ids(self) -> tuple[str, ...]:
        """The Dags with attempts in the job, sorted."""
        return tuple(sorted({dag_id for a in self.attempts if (dag_id := a.owner.dag_id) is not None}))

    @property
    def is_of_unknown_dag(self) -> bool:
        """Whether the Dag of an operator is unknown; see :func:`~job_list.is_of_unknown_dag`."""
        owned = {a.operator_id for a in self.attempts if a.owner.dag_id is not None}
        # A removed job leaves the counters of its operators, which have no attempts. The operator of the whole job
        # takes its savepoints, and reads what its stages have written.
        has_unowned_operator = any(a.operator_id not in owned for a in self.attempts if not a.is_of_job)
        return is_of_unknown_dag(self.job.name, self.dag_ids, has_unowned_operator=has_unowned_operator)

    @property
    def stages(self) -> tuple[OperatorRecord, ...]:
        """The operators without the one that stands for the whole job."""
        return tuple(o for o in self.operators if not o.is_of_job)

    @property
    def attempts_of_stages(self) -> tuple[AttemptRecord, ...]:
        """
        The attempts of the stages of the job; all attempts if no stage has one.

        The operator of the whole job takes its savepoints, and belongs to no run of its stages.
        """
        return tuple(a for a in self.attempts if not a.is_of_job) or self.attempts

    @property
    def operator_of_job(self) -> OperatorRecord | None:
        """
        The operator that stands for the whole job.

        ``None`` before the first aligned checkpoint or savepoint of the job.
        """
        return next((o for o in self.operators if o.is_of_job), None)

    @property
    def checkpoints_of_job(self) -> tuple[CheckpointRecord, ...]:
        """The aligned checkpoints and the savepoints of the whole job."""
        return tuple(c for c in self.checkpoints if c.is_of_job)

    @property
    def requests_of_job(self) -> tuple[CheckpointRequest, ...]:
        """The open requests for aligned checkpoints and savepoints of the whole job."""
        return tuple(r for r in self.requests if r.is_of_job and r.status.is_open)

    def savepoints_asked_of(self, operator_id: OperatorId) -> tuple[CheckpointRequest, ...]:
        """Return the queued savepoint requests to an operator."""
        queued = (r for r in self.requests if r.operator_id == operator_id and r.status is RequestStatus.QUEUED)
        return tuple(r for r in queued if r.properties.is_savepoint)

    def operator(self, operator_id: OperatorId | None) -> OperatorRecord | None:
        """Return an operator of the job."""
        return next((o for o in self.operators if o.operator_id == operator_id), None)

    def checkpoint(self, checkpoint_id: int | None) -> CheckpointRecord | None:
        """Return a checkpoint of the view."""
        return next((c for c in self.checkpoints if c.checkpoint_id == checkpoint_id), None)

    def attempts_of(self, operator_id: OperatorId) -> tuple[AttemptRecord, ...]:
        """Return the attempts of one operator, oldest first."""
        return tuple(a for a in self.attempts if a.operator_id == operator_id)

    def of_operator(self, operator_id: OperatorId) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of one operator, oldest first."""
        return tuple(c for c in self.checkpoints if c.operator_id == operator_id)

    def directories_of(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the directories that may contain files of an operator's checkpoints."""
        rows = (c.location for c in self.of_operator(operator_id) if c.discarded_at is None)
        bases = (job_uri(a.storage_base, a.job_id) for a in self.attempts_of(operator_id))
        return tuple(dict.fromkeys((*rows, *bases)))

    def current_attempt(self, operator: OperatorRecord) -> AttemptRecord | None:
        """Return the newest attempt of an operator."""
        matches = (a for a in self.attempts if (a.operator_id, a.epoch) == (operator.operator_id, operator.epoch))
        return next(matches, None)

    def open_attempt(self, operator: OperatorRecord) -> AttemptRecord | None:
        """Return the newest attempt of an operator if it has not ended."""
        attempt = self.current_attempt(operator)
        return attempt if attempt is not None and attempt.is_running else None

    def has_open_attempt(self, operator: OperatorRecord) -> bool:
        """Return whether the newest attempt of an operator has not ended."""
        return self.open_attempt(operator) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestCheckpoints:
    """Consistent view of the newest readable checkpoints of a job."""

    job: JobRecord
    """Row of the job, whose ``rows_version`` is the version of the view."""
    operators: tuple[OperatorRecord, ...]
    """All operators of the job, sorted by uid."""
    checkpoints: tuple[CheckpointRecord, ...]
    """
    The newest readable checkpoint of each operator that has one, in the order of the operators.

    It is the newest restorable one. While an operator restarts from a savepoint of its job, it is that of before the
    restart until the restore is confirmed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCheckpoints:
    """Filter for the removable checkpoints of an operator that ended before a time."""

    operator_id: OperatorId
    before: datetime
    running_epoch: int | None = None
    """Epoch of the open attempt, whose checkpoints are retained; ``None`` if no attempt is open."""
    witness_generation: int | None = None
    """
    Generation whose completed checkpoints are retained because none of them is restorable.

    Their rows prove that the operator had state. Without them the next attempt would silently start empty.
    """

    def includes(self, checkpoint: CheckpointRecord) -> bool:
        """Return whether a checkpoint matches the filter."""
        is_witness = checkpoint.completed_at is not None and checkpoint.generation == self.witness_generation
        is_candidate = checkpoint.operator_id == self.operator_id and checkpoint.epoch != self.running_epoch
        return is_candidate and not is_witness and _is_gone(checkpoint, self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempts:
    """Filter for the removable attempts of an operator that ended before a time."""

    operator_id: OperatorId
    before: datetime
    kept_epochs: frozenset[int]
    """Epochs to retain: the newest attempt, and the last one of each run with retained checkpoints."""
    storage_base: str | None = None
    """Checkpoint directory of the attempts; ``None`` for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRead:
    """What a call of an attempt reads first, which a database can give together with the lock on the job's row."""

    operator_id: OperatorId
    request_key: str | None = None
    """Key of the trigger request that the call brings; ``None`` for other calls."""
    ends_checkpoint: bool = False
    """Whether the call ends a checkpoint, which changes the statistics and the requests of the operator."""


class JobTransaction(Protocol):
    """
    Transaction on the rows of one job.

    A transaction starts with a write to the job's row, which serializes the writers of the job. Leaving the context
    commits, and an error rolls all changes back.
    """

    @property
    def now(self) -> datetime:
        """
        The time of this transaction.

        It is never before the time of an earlier transaction of the job or of any of its rows. After a correction of a
        clock that was far ahead, the store has moved the times in the rows back.
        """

    @property
    def job(self) -> JobRecord:
        """The job's row."""

    def draw_checkpoint_id(self) -> int:
        """Allocate the next checkpoint id of the job; ids start at 1 and are never reused."""

    def set_next_checkpoint_id(self, following: int) -> None:
        """Set the next checkpoint id of the job."""

    def operator(self, operator_id: OperatorId) -> OperatorRecord | None:
        """Return an operator of the job."""

    def operators_besides(self, task_uids: AbstractSet[str]) -> list[tuple[OperatorRecord, AttemptRecord | None]]:
        """
        Return the operators with other uids than the given ones, each with its newest attempt, sorted by uid.

        :param task_uids: Uids to exclude; the uid of a task includes those of its mapped instances.
        """

    def save_operator(self, record: OperatorRecord) -> None:
        """Insert or replace an operator."""

    def attempt(self, operator_id: OperatorId, epoch: int) -> AttemptRecord | None:
        """Return an attempt by its epoch."""

    def attempt_by_key(self, attempt_key: str) -> AttemptRecord | None:
        """Return an attempt by its idempotency key."""

    def last_attempt_of_run(self, operator_id: OperatorId, run_key: str) -> AttemptRecord | None:
        """Return the newest attempt of an operator in a run."""

    def owners(self, operator_id: OperatorId) -> tuple[AttemptOwner, ...]:
        """Return the owners of the attempts of an operator."""

    def storage_bases(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the distinct checkpoint directories of an operator's attempts, sorted."""

    def ended_attempts(self, wanted: EndedAttempts, limit: int | None) -> tuple[int, ...]:
        """Return the epochs of at most `limit` ended attempts, oldest first."""

    def save_attempt(self, record: AttemptRecord) -> None:
        """Insert or replace an attempt."""

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of the job."""

    def checkpoint_by_request(self, request_key: str) -> CheckpointRecord | None:
        """Return a checkpoint by the key of its trigger request."""

    def summary(self, checkpoint_id: int) -> CheckpointSummary | None:
        """Return the figures of a checkpoint."""

    def open_checkpoints(self, operator_id: OperatorId) -> list[CheckpointRecord]:
        """
        Return the checkpoints of an operator that are not discarded, oldest first.

        They may lack their figures, which no decision uses and an update then leaves as they are; see :meth:`summary`.
        """

    def discarded_checkpoints(self, wanted: EndedCheckpoints, limit: int | None, skipped: int = 0) -> tuple[int, ...]:
        """
        Return the ids of checkpoints of a filter whose files were deleted, in the order of their deletion.

        :param skipped: Number of the first checkpoints to leave out.
        """

    def has_completed(self, operator_id: OperatorId, generation: int | None = None) -> bool:
        """
        Return whether the rows contain a checkpoint that an operator completed, retained or not.

        :param generation: Generation of the checkpoint; ``None`` for any.
        """

    def advanced_runs(self, operator_id: OperatorId, generation: int) -> frozenset[str]:
        """Return the keys of the runs whose complete checkpoints the state of a generation contains."""

    def last_checkpoints_of_runs(self, operator_id: OperatorId, generation: int) -> dict[str, int]:
        """
        Return the last complete checkpoint of each of the newest ``KNOWN_RUNS`` runs of a generation, by run.

        This looks at all checkpoints of the operator.
        """

    def runs_of(self, checkpoint_ids: Sequence[int]) -> frozenset[str]:
        """Return the runs of checkpoints."""

    def are_in_state(self, generation: int, checkpoint_ids: AbstractSet[int]) -> bool:
        """Return whether all of these checkpoints are complete and in the state of a generation."""

    def completed_after(self, operator_id: OperatorId, generation: int, checkpoint_id: int) -> list[CheckpointRecord]:
        """Return the complete checkpoints of a generation with higher ids that no rollback or restore has marked."""

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        """Insert a checkpoint."""

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        """
        Replace a checkpoint if it still has the expected status.

        :raises CoordinatorError: if the status differs; the transaction must be rolled back.
        """

    def acknowledgements(self, checkpoint_id: int) -> list[AcknowledgementRecord]:
        """Return the acknowledgements of an aligned checkpoint."""

    def save_acknowledgement(self, record: AcknowledgementRecord) -> None:
        """Insert or replace the acknowledgement of an operator."""

    def request(self, request_key: str) -> CheckpointRequest | None:
        """Return a request by its key."""

    def open_requests(self, operator_id: OperatorId) -> list[CheckpointRequest]:
        """Return the open requests to an operator, oldest first."""

    def checkpoints_of_job(self) -> list[CheckpointRecord]:
        """Return the aligned checkpoints and the savepoints of the whole job whose files may exist, oldest first."""

    def requests_of_job(self) -> list[CheckpointRequest]:
        """Return the open requests for aligned checkpoints and savepoints of the whole job, oldest first."""

    def ended_requests(self, operator_id: OperatorId, before: datetime, limit: int | None) -> tuple[str, ...]:
        """Return the keys of at most `limit` requests to an operator that ended before a time."""

    def save_request(self, record: CheckpointRequest) -> None:
        """Insert or replace a request."""

    def remove_requests(self, request_keys: tuple[str, ...]) -> None:
        """Remove the rows of requests."""

    def action(self, request_key: str) -> ActionRecord | None:
        """Return an action of a user by its key."""

    def open_actions(self, operator_id: OperatorId) -> list[ActionRecord]:
        """Return the open actions on an operator, oldest first."""

    def save_action(self, record: ActionRecord) -> None:
        """Insert or replace an action of a user."""

    def remove_actions(self, before: datetime) -> None:
        """Remove the actions that ended before a time."""

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return the claim of a savepoint of any job."""

    def save_claim(self, record: ClaimRecord) -> None:
        """
        Insert a claim.

        :raises SavepointClaimedError: if another operator has claimed the savepoint.
        """

    def statistics(self, operator_id: OperatorId) -> StatisticsRecord | None:
        """Return the checkpoint statistics of an operator."""

    def save_statistics(self, record: StatisticsRecord) -> None:
        """Insert or replace the checkpoint statistics of an operator."""

    def view(self) -> JobView:
        """Return a view of the job with the changes of this transaction."""

    def remove_checkpoints(self, checkpoint_ids: tuple[int, ...]) -> None:
        """Remove the rows of checkpoints."""

    def remove_attempts(self, attempts: tuple[AttemptRef, ...]) -> None:
        """Remove the rows of attempts and of their tokens."""

    def remove_job(self) -> None:
        """
        Remove all rows of the job except its own, as the last call of the transaction.

        Only an action may be saved afterwards; it appears again when an attempt creates the job again. The counters of
        epochs, generations and checkpoint ids are retained and hidden. A reader of the removed rows could otherwise
        confuse them with new rows of the same number.
        """


class JobReads(Protocol):
    """Reads of the committed rows of jobs, provided by a store and by each interface of a coordinator."""

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""

    def describe(self, job_id: JobId) -> JobView:
        """
        Return a job with its newest checkpoints and all checkpoints whose files may still exist.

        :raises CheckpointNotFoundError: if the job does not exist.
        """

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, or ``None`` if it has no row."""

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first; its last id is ``before`` of the next page."""

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """
        Return the newest completed checkpoint of an operator, or ``None`` if there is none.

        :raises CheckpointNotFoundError: if the job does not exist.
        """

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """
        Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one.

        A checkpoint that a restore has skipped as damaged is not readable. See ``LatestCheckpoints`` for a restart.

        :param known_version: Version of an earlier view of the job; ``None`` to read the rows in any case.
        :raises CheckpointNotFoundError: if the job does not exist.
        """


class JobStore(JobReads, Protocol):
    """Store of the rows of all jobs. A job without attempts does not exist."""

    def transaction(
        self, job_id: JobId, *, create_as: str | None = None, reads: FirstRead | None = None
    ) -> AbstractContextManager[JobTransaction]:
        """
        Begin a transaction on the rows of a job.

        :param create_as: Name with which to create the job if it does not exist.
        :param reads: What the caller reads first, which saves round trips; it may read other rows too.
        :raises CheckpointNotFoundError: if the job does not exist and ``create_as`` is ``None``.
        :raises CommitStateUnknownError: if the outcome of the commit is unknown when the context ends.
        """

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return the claim of a savepoint of any job."""

    def dag_ids(self, *, beside: str | None = None) -> frozenset[str]:
        """Return the Dags with attempts in any job, or in any job with attempts of one Dag."""

    def jobs_of_run(self, dag_id: str, run_id: str) -> tuple[JobId, ...]:
        """Return the jobs that the tasks of a Dag run have worked on, the most recently active first."""

    def job_overviews(self, page: JobsPage) -> JobList:
        """Return a page of the list of jobs; its cost depends on the number of jobs, but not on their history."""

    def request(self, job_id: JobId, request_key: str) -> CheckpointRequest | None:
        """Return a request of a job by its key."""


class StoredJobs:
    """Base of the services on a job store: the reads of their interfaces."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self._store.jobs()

    def describe(self, job_id: JobId) -> JobView:
        """Return a job; see :meth:`JobReads.describe`."""
        return self._store.describe(job_id)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, or ``None`` if it has no row."""
        return self._store.checkpoint(job_id, checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._store.checkpoints(job_id, page)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator, or ``None`` if there is none."""
        return self._store.latest(job_id, operator_id)

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""
        return self._store.latest_checkpoints(job_id, known_version)


@contextmanager
def rolled_back(store: JobStore, job_id: JobId) -> Iterator[JobTransaction]:
    """
    Open a transaction that is rolled back at its end, for a caller that only reads what a transaction would do.

    A commit would update the version of the job and the time of its last transition.
    """
    with suppress(_RollBack), store.transaction(job_id) as tx:
        yield tx
        raise _RollBack


class _RollBack(Exception):
    """Signal to roll back a transaction that only read."""


def no_such_job(job_id: JobId) -> CheckpointNotFoundError:
    """Return the error for a job that has no attempts, or that the caller may not know of."""
    return CheckpointNotFoundError(
        f"There is no job with the id {job_id}; check its name or id, or wait for its first attempt.", job_id=job_id
    )


def _is_gone(checkpoint: CheckpointRecord, before: datetime) -> bool:
    # The files of an unclaimed savepoint are never deleted, so its end counts.
    gone_at = checkpoint.discarded_at or (None if checkpoint.awaits_discard else checkpoint.ended_at)
    return checkpoint.has_ended and gone_at is not None and gone_at < before


def operator_of_job(tx: JobTransaction) -> OperatorRecord:
    """Return the operator that stands for the whole job; it has no epoch before the first leader."""
    return tx.operator(ALIGNED_OPERATOR_ID) or OperatorRecord(
        job_id=tx.job.job_id, operator_id=ALIGNED_OPERATOR_ID, uid=ALIGNED_UID, epoch=0, generation=1
    )
