"""What the page of a job shows of its operators, attempts, checkpoints and requests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from airflow_provider_statecheck.api.pages.charts import (
    BarChart,
    Timeline,
    duration_chart,
    duration_of,
    size_chart,
    timeline,
)
from airflow_provider_statecheck.api.pages.operator_rows import (
    ByOperator,
    Coordinates,
    OperatorRow,
    is_of,
    is_restorable,
    operator_rows,
)
from airflow_provider_statecheck.api.pages.rendering import readable_duration
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, OperatorId
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.checkpoint.statistics_snapshot import (
    CheckpointStatsSnapshot,
    Custody,
    custody_of,
    snapshot_of,
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
    """Display name of the user who requested the snapshot."""

    @property
    def kind(self) -> str:
        """Return what the snapshot is, in words."""
        return self.record.properties.snapshot_type.value.replace("_", " ")

    @property
    def trigger(self) -> str:
        """Return what triggered the checkpoint."""
        if self.record.properties.unclaimed:
            return "restore"
        if self.record.properties.is_savepoint:
            return f"request of {self.requested_by}" if self.requested_by else "request"
        return "interval" if self.record.is_periodic else "stage"

    @property
    def status(self) -> str:
        """Return the status, or that a restore has found the checkpoint unusable."""
        is_unusable = self.record.unusable_reason is not None and self.record.status is CheckpointStatus.COMPLETED
        return "unusable" if is_unusable else self.record.status.value

    @property
    def duration(self) -> timedelta | None:
        """Return the duration; ``None`` while the checkpoint is in progress."""
        is_over = self.record.completed_at is not None or self.record.ended_at is not None
        return duration_of(self.record) if is_over else None

    @property
    def pointer(self) -> str | None:
        """Return the pointer for a restore; ``None`` if nothing can be restored from the checkpoint."""
        is_kept = self.record.status is CheckpointStatus.COMPLETED and self.record.unusable_reason is None
        return self.record.location if is_kept else None

    @property
    def failure(self) -> str:
        """Return the reason of the failure with its cause; empty without a failure."""
        named = (self.record.failure_reason or "").replace("_", " ")
        return ": ".join(filter(None, (named, self.record.failure_message or self.record.unusable_reason or "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt in a table."""

    record: AttemptRecord
    is_of_task: bool
    """Whether the task of the page started it."""
    length: timedelta

    @property
    def is_running(self) -> bool:
        """Return whether the attempt has not ended."""
        return self.record.status is AttemptStatus.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSection:
    """Section of an operator; attempts, checkpoints, requests and actions are in descending order, the newest only."""

    row: OperatorRow
    statistics: CheckpointStatsSnapshot
    attempts: tuple[AttemptRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    savepoints: tuple[CheckpointRow, ...]
    requests: tuple[SnapshotRequest, ...]
    actions: tuple[RequestedAction, ...]
    size_chart: BarChart | None
    duration_chart: BarChart | None
    timeline: Timeline | None

    @property
    def anchor(self) -> str:
        """Return the id of the section in the page."""
        return f"operator-{self.row.record.operator_id}"

    @property
    def restored(self) -> SnapshotSummary | None:
        """Return what the newest attempt has restored; ``None`` if it has restored nothing."""
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
        """Return whether an attempt has not ended or may be retried, or a request of a user is open."""
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
        return tuple(_section(view, row, self.task) for view, row in zip(views, self.rows, strict=True))

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
        generations = {o.operator_id: o.generation for o in self.view.operators if o.operator_id != ALIGNED_OPERATOR_ID}
        return is_restorable(checkpoint, generations.get(checkpoint.operator_id))

    @property
    def now(self) -> datetime:
        """Return the time of the view."""
        return self.view.read_at

    @property
    def is_running(self) -> bool:
        """Return whether an attempt has not ended."""
        return any(row.status == AttemptStatus.RUNNING for row in self.rows)

    @property
    def removals(self) -> tuple[RequestedAction, ...]:
        """Return the newest requests to remove the job, and their withdrawals, in descending order."""
        removals = (each for each in reversed(self.view.actions) if _is_of_removal(each))
        return tuple(requested_action(self.view, each) for each in islice(removals, REQUESTS_ON_PAGE))

    @property
    def awaits_removal(self) -> bool:
        """Return whether a request to remove the job waits to be carried out."""
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


def _section(view: JobView, row: OperatorRow, task: Coordinates) -> OperatorSection:
    attempts, checkpoints, operator = view.attempts, view.checkpoints, row.record
    savepoints = [c for c in checkpoints if c.properties.is_savepoint and c.status is not CheckpointStatus.ABORTED]
    return OperatorSection(
        row=row,
        statistics=snapshot_of(view, operator),
        attempts=tuple(_attempt_row(a, view.read_at, task) for a in reversed(attempts[-ATTEMPTS_ON_PAGE:])),
        checkpoints=rows_of(view, checkpoints[::-1][:HISTORY_ON_PAGE]),
        savepoints=rows_of(view, savepoints[::-1][:HISTORY_ON_PAGE]),
        requests=_requests(view, operator.operator_id),
        actions=_actions(view, operator),
        size_chart=size_chart(checkpoints, readable_size),
        duration_chart=duration_chart(checkpoints, readable_duration),
        timeline=timeline(attempts, checkpoints, view.read_at),
    )


def _attempt_row(attempt: AttemptRecord, now: datetime, task: Coordinates) -> AttemptRow:
    length = (attempt.ended_at or now) - attempt.registered_at
    return AttemptRow(record=attempt, is_of_task=is_of(attempt.owner, task), length=length)


def _requests(view: JobView, operator_id: OperatorId) -> tuple[SnapshotRequest, ...]:
    asked = [r for r in view.requests if r.operator_id == operator_id and r.properties.is_savepoint]
    return tuple(reversed(asked[-REQUESTS_ON_PAGE:]))


def _is_of_removal(action: ActionRecord) -> bool:
    is_withdrawal = action.action is JobAction.WITHDRAW and action.operator_id is None
    return is_withdrawal or action.action is JobAction.PRUNE


def _actions(view: JobView, operator: OperatorRecord) -> tuple[RequestedAction, ...]:
    of_operator = (each for each in view.actions[::-1] if each.operator_id in (None, operator.operator_id))
    actions = (each for each in of_operator if not _is_of_removal(each))
    return tuple(requested_action(view, each) for each in islice(actions, REQUESTS_ON_PAGE))
