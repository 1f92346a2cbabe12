"""What the page of a job shows of its operators, attempts, checkpoints and requests."""

from __future__ import annotations

from collections import defaultdict
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
from airflow_provider_statecheck.api.pages.rendering import readable_duration
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
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

    record: OperatorRecord
    statistics: CheckpointStatsSnapshot
    attempts: tuple[AttemptRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    savepoints: tuple[CheckpointRow, ...]
    requests: tuple[SnapshotRequest, ...]
    actions: tuple[RequestedAction, ...]
    newest: CheckpointRow | None
    """Newest checkpoint that a retry restores."""
    size_chart: BarChart | None
    duration_chart: BarChart | None
    timeline: Timeline | None

    @property
    def anchor(self) -> str:
        """Return the id of the section in the page."""
        return f"operator-{self.record.operator_id}"

    @property
    def status(self) -> str:
        """Return the status of the newest attempt."""
        return self.attempts[0].record.status.value if self.attempts else "idle"

    @property
    def restored(self) -> SnapshotSummary | None:
        """Return what the newest attempt has restored; ``None`` if it has restored nothing."""
        newest = self.attempts[0].record if self.attempts else None
        return newest.restored_summary if newest and newest.restored_from is not None else None

    @property
    def is_stage(self) -> bool:
        """Return whether a stage runs the operator, in contrast to the coordinator of aligned checkpoints."""
        return self.record.operator_id != ALIGNED_OPERATOR_ID

    @property
    def next_restore(self) -> int | None:
        """Return the checkpoint that a retry restores: the one that a user chose, or the newest one."""
        newest = None if self.newest is None else self.newest.record.checkpoint_id
        return newest if self.record.next_restore is None else self.record.next_restore

    @property
    def failed_attempt(self) -> AttemptRecord | None:
        """Return the newest attempt, if it failed."""
        failed = self.attempts and self.attempts[0].record.status is AttemptStatus.FAILED
        return self.attempts[0].record if failed else None


RETRY_DELAY = timedelta(hours=1)
"""How long after a failure a page waits for the retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSections:
    """A job on a page."""

    view: JobView
    operators: tuple[OperatorSection, ...]
    is_editable: bool = False
    """Whether the user may act on the state of the job."""

    @property
    def is_changing(self) -> bool:
        """Return whether an attempt has not ended or may be retried, or a request of a user is open."""
        savepoints = (each.status for operator in self.operators for each in operator.requests)
        actions = (each.status for operator in self.operators for each in operator.actions)
        is_working = any(each.status == AttemptStatus.RUNNING or self._awaits_retry(each) for each in self.operators)
        return is_working or any(status.is_open for status in (*savepoints, *actions))

    def _awaits_retry(self, section: OperatorSection) -> bool:
        failed = section.failed_attempt
        return failed is not None and failed.ended_at is not None and self.now - failed.ended_at < RETRY_DELAY

    def restorable(self, checkpoint: CheckpointRecord) -> bool:
        """Return whether the next attempt can restore a checkpoint."""
        generations = {o.operator_id: o.generation for o in self.view.operators if o.operator_id != ALIGNED_OPERATOR_ID}
        return _is_restorable(checkpoint, generations.get(checkpoint.operator_id))

    @property
    def now(self) -> datetime:
        """Return the time of the view."""
        return self.view.read_at

    @property
    def dag_ids(self) -> tuple[str, ...]:
        """Return the Dags whose tasks have worked on the job."""
        return tuple(sorted({dict(a.owner.airflow).get("dag_id", "") for a in self.view.attempts} - {""}))


def sections_of(view: JobView, task: Collection[tuple[str, str]] = (), *, is_editable: bool = False) -> JobSections:
    """
    Return a job with its operators.

    :param view: Rows of the job.
    :param task: Coordinates of a task or a run; only operators with an attempt of it are included. Empty for all.
    :param is_editable: Whether the user may act on the state of the job.
    """
    shown = {a.operator_id for a in view.attempts if is_of(a.owner, task)}
    rows = _views_of_operators(view)
    included = (each for each in view.operators if not task or each.operator_id in shown)
    operators = tuple(_section(rows[each.operator_id], each, task) for each in included)
    return JobSections(view=view, operators=operators, is_editable=is_editable)


def is_of(owner: AttemptOwner, task: Collection[tuple[str, str]]) -> bool:
    """Return whether an attempt belongs to a task or a run, by its coordinates."""
    return bool(task) and {*task} <= {*owner.airflow}


def rows_of(view: JobView, checkpoints: Collection[CheckpointRecord]) -> tuple[CheckpointRow, ...]:
    """Return checkpoints with their owners, and with the users who requested them."""
    users = {request.checkpoint_id: request.requested_by for request in view.requests}
    return tuple(
        CheckpointRow(record=each, custody=custody_of(view, each), requested_by=users.get(each.checkpoint_id, ""))
        for each in checkpoints
    )


def _views_of_operators(view: JobView) -> dict[OperatorId, JobView]:
    # One pass over all rows: each section looks at those of its operator several times.
    attempts, checkpoints = (
        defaultdict[OperatorId, list[AttemptRecord]](list),
        defaultdict[OperatorId, list[CheckpointRecord]](list),
    )
    for attempt in view.attempts:
        attempts[attempt.operator_id].append(attempt)
    for checkpoint in view.checkpoints:
        checkpoints[checkpoint.operator_id].append(checkpoint)
    ids = (operator.operator_id for operator in view.operators)
    return {i: replace(view, attempts=tuple(attempts[i]), checkpoints=tuple(checkpoints[i])) for i in ids}


def _section(view: JobView, operator: OperatorRecord, task: Collection[tuple[str, str]]) -> OperatorSection:
    attempts, checkpoints = view.attempts, view.checkpoints
    newest = [c for c in checkpoints if _is_restorable(c, operator.generation)]
    savepoints = [c for c in checkpoints if c.properties.is_savepoint and c.status is not CheckpointStatus.ABORTED]
    return OperatorSection(
        record=operator,
        statistics=snapshot_of(view, operator),
        attempts=tuple(_attempt_row(a, view.read_at, task) for a in reversed(attempts[-ATTEMPTS_ON_PAGE:])),
        checkpoints=rows_of(view, checkpoints[::-1][:HISTORY_ON_PAGE]),
        savepoints=rows_of(view, savepoints[::-1][:HISTORY_ON_PAGE]),
        requests=_requests(view, operator.operator_id),
        actions=_actions(view, operator),
        newest=next(iter(rows_of(view, newest[-1:])), None),
        size_chart=size_chart(checkpoints, readable_size),
        duration_chart=duration_chart(checkpoints, readable_duration),
        timeline=timeline(attempts, checkpoints, view.read_at),
    )


def _is_restorable(checkpoint: CheckpointRecord, generation: int | None) -> bool:
    is_usable = checkpoint.is_restorable and checkpoint.unusable_reason is None
    return is_usable and checkpoint.generation == generation


def _attempt_row(attempt: AttemptRecord, now: datetime, task: Collection[tuple[str, str]]) -> AttemptRow:
    length = (attempt.ended_at or now) - attempt.registered_at
    return AttemptRow(record=attempt, is_of_task=is_of(attempt.owner, task), length=length)


def _requests(view: JobView, operator_id: OperatorId) -> tuple[SnapshotRequest, ...]:
    asked = [r for r in view.requests if r.operator_id == operator_id and r.properties.is_savepoint]
    return tuple(reversed(asked[-REQUESTS_ON_PAGE:]))


def _actions(view: JobView, operator: OperatorRecord) -> tuple[RequestedAction, ...]:
    actions = (each for each in reversed(view.actions) if each.operator_id in (None, operator.operator_id))
    return tuple(requested_action(view, each) for each in islice(actions, REQUESTS_ON_PAGE))
