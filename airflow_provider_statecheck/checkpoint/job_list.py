"""List of jobs: overviews of jobs, and pages with a filter, an order and a position."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

LARGEST_JOB_PAGE: Final = 1000
_FAILURE_LENGTH = 300
_HIGHEST_VALUE = 2**63 - 1


class ListedStatus(StrEnum):
    """Status of a job by the newest attempts of its operators, in the order of a list that is sorted by status."""

    RUNNING = "running"
    """An attempt is running."""
    FAILED = "failed"
    """No attempt is running, and the newest attempt of an operator failed."""
    IDLE = "idle"
    """No attempt is running, and one was abandoned without a result."""
    FINISHED = "finished"
    """The newest attempt of each operator finished."""


class JobSort(StrEnum):
    """Order of a list of jobs or of operators."""

    NAME = "name"
    COMPLETED_AT = "completed_at"
    SIZE = "size"
    STATUS = "status"
    FAILED_AT = "failed_at"


SortValue = str | int | datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of a job by which the list of jobs is filtered and sorted."""

    status: ListedStatus | None = None
    """Status of the job; ``None`` if it has no attempts, and therefore does not exist."""
    checkpoint_id: int | None = None
    """Id of the checkpoint that was completed last, of those that can be restored; ``None`` if there is none."""
    completed_at: datetime | None = None
    full_size_bytes: int | None = None
    """Number of bytes that a restore from that checkpoint may read."""
    failed_at: datetime | None = None
    """Time of the last failure of an attempt or checkpoint whose row is retained."""
    failure: str | None = None
    """Reason of that failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview(JobFigures):
    """A job in the list of jobs."""

    job_id: JobId
    name: str
    status: ListedStatus
    seen_at: datetime
    """Time of the last change of the job, which is not before the last call of an attempt."""
    operators: int
    """Number of operators with attempts; the coordinator of several operators counts only in a job without stages."""
    dag_ids: tuple[str, ...] = ()
    """Dags with attempts in the job, sorted."""
    is_of_unknown_dag: bool = False
    """Whether an operator has only attempts of scripts or of a recovery; see :func:`is_of_unknown_dag`."""
    earlier_size_bytes: int | None = None
    """The size of the checkpoint that the operator completed before the last one; ``None`` if its row is removed."""
    problem: str | None = None
    """
    Error of the row of the job; values that cannot be read are then missing, and an unreadable status is ``failed``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """
    Page, order and filter of the list of jobs.

    Jobs with equal values are sorted by name, and jobs without a value come last in both directions.

    :raises InvalidConfigurationError: for a limit out of range, or a position that belongs to another order.
    """

    after: str | None = None
    """Position in the list after which the page begins, ``JobList.following`` of the page before; ``None`` to begin."""
    limit: int = 50
    sort: JobSort = JobSort.NAME
    descending: bool = False
    name: str | None = None
    """Text that the names of the jobs contain, regardless of the case of ASCII letters."""
    status: ListedStatus | None = None
    dag_id: str | None = None
    """Dag that has attempts in the jobs."""
    with_test_jobs: bool = False
    """Whether jobs of test runs are listed."""
    readable_dag_ids: frozenset[str] | None = field(default=None, repr=False)
    """
    Dags that the reader may read; ``None`` for all.

    Jobs of other Dags, and jobs with an unknown Dag, are then neither listed nor counted.
    """

    def __post_init__(self) -> None:
        require("limit", self.limit, lambda n: 1 <= n <= LARGEST_JOB_PAGE, f"from 1 to {LARGEST_JOB_PAGE}")
        _ = self.position

    @property
    def position(self) -> tuple[SortValue, str] | None:
        """The sort value and the name after which the page begins."""
        return None if self.after is None else _parsed_position(self.after, self.sort)

    def following(self, value: SortValue, name: str) -> str:
        """Return the position after a job."""
        shown = value.isoformat() if isinstance(value, datetime) else value
        return base64.urlsafe_b64encode(json.dumps([self.sort.value, shown, name]).encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """Page of the list of jobs."""

    jobs: tuple[JobOverview, ...]
    counts: dict[ListedStatus, int]
    """Number of jobs that match the filter, regardless of its status, by status."""
    following: str | None = None
    """Position of the next page; ``None`` for the last page."""


def ascii_lower(text: str) -> str:
    """Return a text with lower-case ASCII letters, as databases compare names."""
    return text.encode().lower().decode()


def rank_of(status: ListedStatus) -> int:
    """Return the rank of a status in a list that is sorted by status."""
    return list(ListedStatus).index(status)


def status_of(newest_attempts: Iterable[AttemptStatus]) -> ListedStatus:
    """Return the status of a job by the newest attempts of its operators."""
    found = set(newest_attempts)
    if AttemptStatus.RUNNING in found:
        return ListedStatus.RUNNING
    if AttemptStatus.FAILED in found:
        return ListedStatus.FAILED
    return ListedStatus.FINISHED if found == {AttemptStatus.FINISHED} else ListedStatus.IDLE


Failure = tuple[datetime, str]
"""Time and reason of a failure. Of two at one time, the greater one counts as the last."""


def failure_of_attempt(attempt: AttemptRecord) -> Failure | None:
    """Return the failure of an attempt that failed, or that never ended and was replaced or abandoned."""
    if attempt.ended_at is None or attempt.status not in (AttemptStatus.FAILED, AttemptStatus.FENCED):
        return None
    reason = attempt.message or f"attempt {attempt.epoch} was replaced or abandoned before it ended"
    return attempt.ended_at, _shortened(reason)


def failure_of_checkpoint(checkpoint: CheckpointRecord) -> Failure | None:
    """Return the failure of an aborted checkpoint, unless its attempt ended first."""
    is_failure = checkpoint.failure_reason not in (None, CheckpointFailureReason.ATTEMPT_ENDED.value)
    if checkpoint.status is not CheckpointStatus.ABORTED or checkpoint.ended_at is None or not is_failure:
        return None
    return checkpoint.ended_at, _shortened(f"checkpoint {checkpoint.checkpoint_id}: {checkpoint.failure_message}")


def is_of_unknown_dag(name: str, dag_ids: Iterable[str], *, has_unowned_operator: bool) -> bool:
    """
    Return whether the Dag of an operator of a job is unknown, so that only readers of all Dags may read the job.

    Attempts of scripts and of recovered jobs have no Dag. An operator with only such attempts counts as one of the Dag
    after which the job is named, provided that this Dag has attempts in the job: the coordinator then rejects
    registrations from other Dags. The name alone is no proof.

    :param dag_ids: Dags with attempts in the job.
    :param has_unowned_operator: Whether an operator has no attempt of a Dag.
    """
    dags = tuple(dag_ids)
    return not dags or (has_unowned_operator and not any(name.startswith(f"{dag_id}/") for dag_id in dags))


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _FAILURE_LENGTH else f"{line[: _FAILURE_LENGTH - 1]}…"


def _parsed_position(text: str, sort: JobSort) -> tuple[SortValue, str]:
    try:
        found, value, name = json.loads(base64.urlsafe_b64decode(text))
        if found == sort.value:
            return _parsed_value(value, sort), _parsed_name(name)
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    raise InvalidConfigurationError(
        f"Expected a position in the list of jobs sorted by {sort.value}, found {text[:80]!a}; request the first page "
        "again."
    )


def _parsed_value(value: Any, sort: JobSort) -> SortValue:
    if sort is JobSort.NAME:
        return _parsed_name(value)
    if value is None:
        return None
    if sort in (JobSort.COMPLETED_AT, JobSort.FAILED_AT):
        return datetime.fromisoformat(value).astimezone(UTC)
    if type(value) is not int or abs(value) > _HIGHEST_VALUE:
        raise ValueError(value)
    return value


def _parsed_name(name: Any) -> str:
    # Databases store neither NUL nor halves of a surrogate pair, which are valid in JSON.
    if not isinstance(name, str) or b"\0" in name.encode():
        raise ValueError(name)
    return name
