"""What pages show of a job: the table of operators, attempts, checkpoints and requests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query

from airflow_provider_statecheck.api.pages.charts import (
    BarChart,
    Timeline,
    duration_chart,
    duration_of,
    size_chart,
    timeline,
)
from airflow_provider_statecheck.checkpoint.attempt_work import AttemptWork, work_of
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.fencing import silent_since
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.job_list import (
    Failure,
    JobSort,
    failure_of_attempt,
    failure_of_checkpoint,
    rank_of,
    status_of,
)
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    InPlaceRestore,
    JobAction,
    JobRecord,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.retention import Custody, custody_of
from airflow_provider_statecheck.checkpoint.start_decision import waiting_restore_in, with_generation
from airflow_provider_statecheck.checkpoint.statistics import (
    CheckpointStatsSnapshot,
    OperatorStatistics,
    Refusal,
    statistics_of,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.maintenance.actions import RequestedAction, requested_action

HISTORY_ON_PAGE = 15
"""Number of checkpoints of an operator on the page of its job."""
ATTEMPTS_ON_PAGE = 20
REQUESTS_ON_PAGE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint in a table."""

    record: CheckpointRecord
    custody: Custody
    requested_by: str = ""
    """Display name of the user who requested the savepoint."""

    @property
    def kind(self) -> str:
        """What was requested, in words."""
        return self.record.properties.snapshot_type.value.replace("_", " ")

    @property
    def trigger(self) -> str:
        """What triggered the checkpoint."""
        if self.record.properties.unclaimed:
            return "restore"
        if self.record.properties.is_savepoint:
            return f"request of {self.requested_by}" if self.requested_by else "request"
        return "interval" if self.record.is_periodic else "stage"

    @property
    def status(self) -> str:
        """The status, or that a restore has found the checkpoint unusable."""
        is_unusable = self.record.unusable_reason is not None and self.record.status is CheckpointStatus.COMPLETED
        return "unusable" if is_unusable else self.record.status.value

    @property
    def duration(self) -> timedelta | None:
        """The duration; ``None`` while the checkpoint is in progress."""
        is_over = self.record.completed_at is not None or self.record.ended_at is not None
        return duration_of(self.record) if is_over else None

    @property
    def pointer(self) -> str | None:
        """The pointer for a restore; ``None`` if nothing can be restored from the checkpoint."""
        is_kept = self.record.status is CheckpointStatus.COMPLETED and self.record.unusable_reason is None
        return self.record.location if is_kept else None

    @property
    def failure(self) -> str:
        """The reason of the failure with its cause; empty without a failure."""
        named = (self.record.failure_reason or "").replace("_", " ")
        return ": ".join(filter(None, (named, self.record.failure_message or self.record.unusable_reason or "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSection:
    """Section of an operator; attempts, checkpoints, requests and actions are in descending order, the newest only."""

    row: OperatorRow
    work: AttemptWork
    statistics: CheckpointStatsSnapshot
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[CheckpointRow, ...]
    savepoints: tuple[CheckpointRow, ...]
    requests: tuple[CheckpointRequest, ...]
    actions: tuple[RequestedAction, ...]
    size_chart: BarChart | None
    duration_chart: BarChart | None
    timeline: Timeline | None
    refusals: tuple[Refusal, ...]

    @property
    def anchor(self) -> str:
        """The id of the section in the page."""
        return f"operator-{self.row.record.operator_id}"

    @property
    def without_checkpoint(self) -> str:
        """Why there is no checkpoint to restore, and where the next attempt starts."""
        if self.row.status != AttemptStatus.FINISHED:
            return "A retry starts from the beginning."
        completed = self.statistics.counts.completed
        if not completed:
            return "The task succeeded without a checkpoint; another run of it starts from the beginning."
        return (
            f"The task succeeded, and its {counted(completed, 'completed checkpoint')} "
            f"{'is' if completed == 1 else 'are'} no longer needed and not retained; if it is cleared, it starts from "
            "the beginning."
        )

    @property
    def restored(self) -> CheckpointSummary | None:
        """What the newest attempt has restored; ``None`` if it has restored nothing."""
        newest = self.row.attempt
        return newest.restored_summary if newest and newest.restored_from is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job on a page, with the operators that the page is about."""

    view: JobView
    rows: tuple[OperatorRow, ...]
    task: Coordinates = ()
    """Task or run of the page."""
    is_editable: bool = False
    """Whether the user may act on the state of the job."""

    @property
    def is_changing(self) -> bool:
        """Whether an attempt has not ended or may be retried, or a request of a user is open."""
        shown = {row.record.operator_id for row in self.rows}
        savepoints = (r.status for r in self.view.requests if r.operator_id in shown and r.properties.is_savepoint)
        actions = (a.status for a in self.view.actions if a.operator_id is None or a.operator_id in shown)
        is_open = any(status.is_open for status in (*savepoints, *actions))
        return is_open or any(row.is_working(self.now) for row in self.rows)

    def sections(self) -> tuple[OperatorSection, ...]:
        """Return the sections of the operators."""
        attempts, checkpoints = ByOperator(self.view.attempts), ByOperator(self.view.checkpoints)
        ids = (row.record.operator_id for row in self.rows)
        views = (replace(self.view, attempts=attempts[i], checkpoints=checkpoints[i]) for i in ids)
        return tuple(_section(view, row) for view, row in zip(views, self.rows, strict=True))

    def is_of_task(self, attempt: AttemptRecord) -> bool:
        """Return whether the task of the page has started an attempt."""
        return is_of(attempt.owner, self.task)

    def of_operator(self, operator_id: str) -> ShownJob:
        """
        Return the job with one of its operators.

        :raises CheckpointNotFoundError: if the job has no such operator.
        """
        rows = tuple(row for row in self.rows if row.record.operator_id == operator_id)
        if not rows:
            raise CheckpointNotFoundError(f"Expected operator {operator_id} in job {self.view.job.job_id}, found none.")
        return replace(self, rows=rows)

    def restorable(self, checkpoint: CheckpointRecord) -> bool:
        """Return whether the next attempt can restore a checkpoint."""
        stages = [o for o in self.view.stages if o.operator_id == checkpoint.operator_id]
        found = (with_generation(self.view, stage, checkpoint.generation) for stage in stages)
        return any(is_restorable(checkpoint, stage.generation) for stage in found)

    @property
    def now(self) -> datetime:
        """The time of the view."""
        return self.view.read_at

    @property
    def is_running(self) -> bool:
        """Whether an attempt has not ended."""
        return any(row.status == AttemptStatus.RUNNING for row in self.rows)

    @property
    def removals(self) -> tuple[RequestedAction, ...]:
        """The newest requests to remove the job, and their withdrawals, in descending order."""
        removals = (each for each in reversed(self.view.actions) if _is_of_removal(each))
        return tuple(requested_action(self.view, each) for each in islice(removals, REQUESTS_ON_PAGE))

    @property
    def awaits_removal(self) -> bool:
        """Whether a request to remove the job waits to be carried out."""
        return any(each.status is RequestStatus.QUEUED and each.action is JobAction.PRUNE for each in self.view.actions)


def shown_job(view: JobView, task: Coordinates = (), *, is_editable: bool = False) -> ShownJob:
    """
    Return a job with its operators.

    :param task: Coordinates of a task or a run; only operators with an attempt of it are included. Empty for all.
    :param is_editable: Whether the user may act on the state of the job.
    """
    return ShownJob(view=view, rows=operator_rows(view, task), task=task, is_editable=is_editable)


def rows_of(view: JobView, checkpoints: Collection[CheckpointRecord]) -> tuple[CheckpointRow, ...]:
    """Return checkpoints with their owners, and with the users who requested them."""
    users = {request.checkpoint_id: request.requested_by for request in view.requests}
    return tuple(
        CheckpointRow(record=each, custody=custody_of(view, each), requested_by=users.get(each.checkpoint_id, ""))
        for each in checkpoints
    )


def _section(view: JobView, row: OperatorRow) -> OperatorSection:
    attempts, checkpoints, operator = view.attempts, view.checkpoints, row.record
    savepoints = [c for c in checkpoints if c.properties.is_savepoint and c.status is not CheckpointStatus.ABORTED]
    return OperatorSection(
        row=row,
        work=work_of(view, operator.operator_id),
        statistics=statistics_of(view, operator),
        attempts=attempts[::-1][:ATTEMPTS_ON_PAGE],
        checkpoints=rows_of(view, checkpoints[::-1][:HISTORY_ON_PAGE]),
        savepoints=rows_of(view, savepoints[::-1][:HISTORY_ON_PAGE]),
        requests=_requests(view, operator.operator_id),
        actions=_actions(view, operator),
        size_chart=size_chart(checkpoints),
        duration_chart=duration_chart(checkpoints),
        timeline=timeline(attempts, checkpoints, view.read_at),
        refusals=OperatorStatistics.in_view(view, operator.operator_id).refusals,
    )


def _requests(view: JobView, operator_id: OperatorId) -> tuple[CheckpointRequest, ...]:
    asked = [r for r in view.requests if r.operator_id == operator_id and r.properties.is_savepoint]
    return tuple(reversed(asked[-REQUESTS_ON_PAGE:]))


def _is_of_removal(action: ActionRecord) -> bool:
    is_withdrawal = action.action is JobAction.WITHDRAW and action.operator_id is None
    return is_withdrawal or action.action is JobAction.PRUNE


def _actions(view: JobView, operator: OperatorRecord) -> tuple[RequestedAction, ...]:
    of_operator = (each for each in view.actions[::-1] if each.operator_id in (None, operator.operator_id))
    actions = (each for each in of_operator if not _is_of_removal(each))
    return tuple(requested_action(view, each) for each in islice(actions, REQUESTS_ON_PAGE))


OPERATORS_ON_PAGE = 50
"""Number of operators on a page of the table."""
RETRY_DELAY = timedelta(hours=1)
"""How long after a failure a page waits for the retry."""

Record = TypeVar("Record", AttemptRecord, CheckpointRecord)
Coordinates = tuple[str | int, ...]
"""The Dag and the run, or all coordinates of a task; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator in the table."""

    job: JobRecord
    record: OperatorRecord
    attempt: AttemptRecord | None
    """Newest attempt; ``None`` if its row is removed."""
    newest: CheckpointRecord | None
    """Newest checkpoint that a retry restores."""
    failure: Failure | None
    """Last failure of an attempt or checkpoint whose row is retained."""
    in_place_restore: InPlaceRestore | None
    """Savepoint of the job that the next attempt restores instead; ``None`` if no user wants this."""
    silent_since: datetime | None
    """Last call of the newest attempt, if it is open but has been silent for so long that ``gc`` may close it."""

    @property
    def status(self) -> str:
        """The status of the newest attempt."""
        return "idle" if self.attempt is None else self.attempt.status.value

    @property
    def is_stage(self) -> bool:
        """Whether a stage runs the operator, in contrast to the coordinator of aligned checkpoints."""
        return not self.record.is_of_job

    @property
    def can_be_saved(self) -> bool:
        """Whether a savepoint can be taken: of a running attempt, or as a copy of the newest checkpoint."""
        return self.status == AttemptStatus.RUNNING or self.newest is not None

    @property
    def next_restore(self) -> int | None:
        """The checkpoint that a retry restores: the one that a user chose, or the newest one."""
        newest = None if self.newest is None else self.newest.checkpoint_id
        return newest if self.record.next_restore is None else self.record.next_restore

    @property
    def failed_attempt(self) -> AttemptRecord | None:
        """The newest attempt, if it failed."""
        return self.attempt if self.attempt is not None and self.attempt.status is AttemptStatus.FAILED else None

    def is_working(self, now: datetime) -> bool:
        """Return whether an attempt gives signs of life, or failed so recently that a retry may follow."""
        if self.status == AttemptStatus.RUNNING:
            return self.silent_since is None
        failed = self.failed_attempt
        return failed is not None and failed.ended_at is not None and now - failed.ended_at < RETRY_DELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsQuery:
    """Filter, order and position of the table in the address of its page."""

    name: Annotated[str, Query(description="Only operators whose names contain this text")] = ""
    sort: Annotated[JobSort, Query(description="Order of the operators")] = JobSort.STATUS
    descending: Annotated[bool, Query(description="Whether the order is reversed")] = False
    page: Annotated[int, Query(ge=1, le=10**9, description="Number of the page, from 1")] = 1

    def table(self, rows: Iterable[OperatorRow]) -> OperatorsTable:
        """Return a page of the table of operators; those without a value to sort by come last."""
        found = [row for row in rows if self.name.casefold() in row.record.uid.casefold()]
        found.sort(key=lambda row: (_name(row), row.job.name))
        valued = [(value, row) for row in found if (value := _value(row, self.sort)) is not None]
        valued.sort(key=lambda pair: pair[0], reverse=self.descending)
        ordered = [row for _, row in valued] + [row for row in found if _value(row, self.sort) is None]
        begin = (self.page - 1) * OPERATORS_ON_PAGE
        return OperatorsTable(query=self, rows=tuple(ordered[begin : begin + OPERATORS_ON_PAGE]), counts=_counts(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsTable:
    """A page of the table of operators."""

    query: OperatorsQuery
    rows: tuple[OperatorRow, ...]
    counts: dict[str, int]
    """Number of operators that match the filter, by status."""

    @property
    def count(self) -> int:
        """The number of operators that match the filter."""
        return sum(self.counts.values())

    @property
    def has_more(self) -> bool:
        """Whether operators follow on another page."""
        return self.query.page * OPERATORS_ON_PAGE < self.count


class ByOperator(Generic[Record]):
    """Rows of a job by their operator, in their order; each is looked at several times."""

    def __init__(self, records: Iterable[Record]) -> None:
        found = defaultdict[OperatorId, list[Record]](list)
        for record in records:
            found[record.operator_id].append(record)
        self._found: dict[OperatorId, tuple[Record, ...]] = {key: tuple(rows) for key, rows in found.items()}

    def __getitem__(self, operator_id: OperatorId) -> tuple[Record, ...]:
        return self._found.get(operator_id, ())


def operator_rows(view: JobView, task: Coordinates = ()) -> tuple[OperatorRow, ...]:
    """
    Return the operators of a job.

    :param task: Only operators with an attempt of this task or run are included.
    """
    attempts, checkpoints = ByOperator(view.attempts), ByOperator(view.checkpoints)
    shown = {a.operator_id for a in view.attempts if is_of(a.owner, task)}
    included = (each for each in view.operators if not task or each.operator_id in shown)
    return tuple(_row(view, o, attempts[o.operator_id], checkpoints[o.operator_id]) for o in included)


def is_of(owner: AttemptOwner, task: Coordinates) -> bool:
    """Return whether an attempt belongs to a task or a run."""
    return bool(task) and owner.task is not None and owner.task[: len(task)] == task


def is_restorable(checkpoint: CheckpointRecord, generation: int | None) -> bool:
    """Return whether the next attempt of an operator with a generation can restore a checkpoint."""
    return checkpoint.is_usable and checkpoint.generation == generation


def _row(
    view: JobView,
    operator: OperatorRecord,
    attempts: Sequence[AttemptRecord],
    checkpoints: Sequence[CheckpointRecord],
) -> OperatorRow:
    newest = (c for c in reversed(checkpoints) if is_restorable(c, operator.generation))
    found = (*map(failure_of_attempt, attempts), *map(failure_of_checkpoint, checkpoints))
    return OperatorRow(
        job=view.job,
        record=operator,
        attempt=attempts[-1] if attempts else None,
        newest=next(newest, None),
        failure=max((each for each in found if each is not None), default=None),
        in_place_restore=waiting_restore_in(view, operator),
        silent_since=silent_since(attempts[-1], checkpoints, view.read_at) if attempts else None,
    )


def _value(row: OperatorRow, sort: JobSort) -> Any:
    if sort is JobSort.NAME:
        return _name(row)
    if sort is JobSort.STATUS:
        return rank_of(status_of(() if row.attempt is None else (row.attempt.status,)))
    if sort is JobSort.FAILED_AT:
        return row.failure and row.failure[0]
    if row.newest is None:
        return None
    return row.newest.full_size_bytes if sort is JobSort.SIZE else row.newest.completed_at


def _name(row: OperatorRow) -> list[str | int]:
    # Mapped instances in the order of their indexes: load[2] before load[10]. Texts and numbers alternate.
    parts = re.split(r"([0-9]+)", row.record.uid)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _counts(rows: Iterable[OperatorRow]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.status] += 1
    return dict(sorted(counts.items()))
