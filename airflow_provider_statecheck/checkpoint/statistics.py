"""
Checkpoint statistics of an operator.

Statistics are saved in the transaction of the transition that they count. A transition that is rolled back is therefore
not counted, and a repeated message is counted once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode, encode, json_size, truncated
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
    StatisticsRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import StateCheckError

log = logging.getLogger(__name__)

HISTORY_SIZE: Final = 10
"""Number of ended checkpoints in the history."""

NEWEST_VALUES: Final = 200
"""Number of the newest values from which percentiles are computed."""
_MAX_COUNTED_IDS = 64
_MILLISECOND = timedelta(milliseconds=1)

# Maximum sizes of texts in a row, as JSON.
_LOCATION_BYTES = 1500
_CAUSE_BYTES = 600
_LABEL_BYTES = 300
_KEY_BYTES = 40
_REFUSAL_BYTES = 1500
_COORDINATES_BYTES = 2000
_MAX_REFUSALS = 3
_MAX_COUNTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """Statistics of one checkpoint or savepoint."""

    checkpoint_id: int
    kind: str
    is_savepoint: bool
    status: str
    epoch: int
    """Epoch of the attempt that took it."""
    attempt: str = ""
    """Display name of the owner of that attempt."""
    triggered_at: datetime
    ended_at: datetime | None = None
    """Time at which it was completed or aborted."""
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    location: str = ""
    """Directory; empty if the URI is too long to store."""
    counts: tuple[tuple[str, int], ...] = ()
    failure_reason: str | None = None
    failure_cause: str = ""
    late_at: datetime | None = None
    """Time of an acknowledgement after it was aborted."""

    @property
    def is_interrupted(self) -> bool:
        """Whether its attempt ended first; it then counts neither as completed nor as failed."""
        return self.failure_reason == CheckpointFailureReason.ATTEMPT_ENDED.value

    @property
    def duration(self) -> timedelta | None:
        """The time from its trigger to its end, or ``None`` while it is in progress."""
        return None if self.ended_at is None else self.ended_at - self.triggered_at

    @classmethod
    def of(cls, checkpoint: CheckpointRecord, attempt: AttemptRecord | None) -> CheckpointEntry:
        """
        Return the statistics of a checkpoint.

        :param attempt: Attempt that took it; ``None`` if its row is removed.
        """
        return cls(
            checkpoint_id=checkpoint.checkpoint_id,
            kind=checkpoint.properties.snapshot_type.value,
            is_savepoint=checkpoint.properties.is_savepoint,
            status=checkpoint.status.value,
            epoch=checkpoint.epoch,
            attempt=_label(attempt),
            triggered_at=checkpoint.triggered_at,
            ended_at=checkpoint.completed_at or checkpoint.ended_at,
            state_size_bytes=checkpoint.state_size_bytes,
            full_size_bytes=checkpoint.full_size_bytes,
            location=truncated_location(checkpoint.location),
            counts=truncated_counts(checkpoint.counts),
            failure_reason=checkpoint.failure_reason,
            failure_cause=truncated_cause(checkpoint.failure_message),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredEntry:
    """Statistics of a restore."""

    checkpoint_id: int
    is_savepoint: bool
    restored_at: datetime
    epoch: int
    """Epoch of the attempt that restored it."""
    attempt: str = ""
    """Display name of the owner of that attempt."""
    full_size_bytes: int = 0
    location: str = ""

    @classmethod
    def of(cls, checkpoint: CheckpointRecord, attempt: AttemptRecord, restored_at: datetime) -> RestoredEntry:
        """Return the statistics of a restore."""
        return cls(
            checkpoint_id=checkpoint.checkpoint_id,
            is_savepoint=checkpoint.properties.is_savepoint,
            restored_at=restored_at,
            epoch=attempt.epoch,
            attempt=_label(attempt),
            full_size_bytes=checkpoint.full_size_bytes,
            location=truncated_location(checkpoint.location),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A task that the coordinator refused to start, with the reason and the remedy."""

    refused_at: datetime
    task: str
    """Display name of the task."""
    code: str
    message: str
    """Text of the error, which says what to do."""
    airflow: tuple[tuple[str, str], ...] = ()
    """Coordinates of the task instance; empty outside Airflow."""

    @classmethod
    def of(cls, owner: AttemptOwner, error: StateCheckError, now: datetime) -> Refusal:
        """Return the refusal of a task, with texts of their maximum size in a row."""
        return cls(
            refused_at=now,
            task=truncated(owner.label, _LABEL_BYTES),
            code=error.code,
            message=truncated(masked(str(error)), _REFUSAL_BYTES),
            airflow=owner.airflow,
        )

    def is_of(self, owner: AttemptOwner) -> bool:
        """Return whether it refused a task, in any of its tries."""
        return self.airflow == owner.airflow and bool(self.airflow or self.task == truncated(owner.label, _LABEL_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSummary:
    """Minimum, average and maximum of all values, and percentiles of the newest values."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None
    newest: tuple[int, ...] = ()

    @property
    def average(self) -> float | None:
        """The mean of all values."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> int | None:
        """
        Return a percentile of the newest values, by the nearest rank.

        :param percent: Percentage, more than 0 and at most 100.
        :return: The percentile, or ``None`` without values.
        """
        if not self.newest:
            return None
        rank = math.ceil(percent / 100 * len(self.newest))
        return sorted(self.newest)[max(rank, 1) - 1]

    def added(self, value: int) -> StatsSummary:
        """Return the summary with an additional value."""
        return StatsSummary(
            count=self.count + 1,
            total=self.total + value,
            minimum=value if self.minimum is None else min(self.minimum, value),
            maximum=value if self.maximum is None else max(self.maximum, value),
            newest=(*self.newest, value)[-NEWEST_VALUES:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsCounts:
    """Numbers of checkpoints by status."""

    restored: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """The number of checkpoints of any status."""
        return self.completed + self.failed + self.in_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStats:
    """Checkpoint statistics of one operator, in its row and at a time."""

    checkpoints: CheckpointStatsCounts = field(default_factory=CheckpointStatsCounts)
    savepoints: CheckpointStatsCounts = field(default_factory=CheckpointStatsCounts)
    failures: tuple[tuple[str, int], ...] = ()
    """Number of failures by reason."""
    state_size: StatsSummary = field(default_factory=StatsSummary)
    """Bytes that completed checkpoints added."""
    full_size: StatsSummary = field(default_factory=StatsSummary)
    """Bytes that a restore of completed checkpoints reads."""
    duration: StatsSummary = field(default_factory=StatsSummary)
    """Durations of completed checkpoints in milliseconds, without the increment before the start."""
    history: tuple[CheckpointEntry, ...] = ()
    """Latest checkpoints, newest first."""
    latest_completed: CheckpointEntry | None = None
    latest_savepoint: CheckpointEntry | None = None
    latest_failed: CheckpointEntry | None = None
    latest_restored: RestoredEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics(CheckpointStats):
    """
    Statistics of the ended checkpoints of an operator.

    Checkpoints in progress are not included; their rows provide them.
    """

    rejected: int = 0
    """Number of checkpoints that failed before they had an id."""
    counted_ids: tuple[int, ...] = field(default=(), repr=False)
    """Ids of the checkpoints that were counted last, which late reports do not count again."""
    refusals: tuple[Refusal, ...] = ()
    """The last tasks that were refused, the newest first."""

    def ended(self, entry: CheckpointEntry) -> OperatorStatistics:
        """Return the statistics with an additional completed or aborted checkpoint."""
        recorded = replace(
            self,
            history=_newest_first((entry, *self.history))[:HISTORY_SIZE],
            counted_ids=(*self.counted_ids, entry.checkpoint_id)[-_MAX_COUNTED_IDS:],
        )
        if entry.is_interrupted:
            return recorded
        counted = recorded._counted(entry)
        return counted._completed(entry) if entry.status == CheckpointStatus.COMPLETED else counted._failed(entry)

    def restored(self, entry: RestoredEntry) -> OperatorStatistics:
        """Return the statistics with the restore of an attempt, which counts once even if it is reported again."""
        last = self.latest_restored
        recorded = replace(self, latest_restored=entry)
        if last is not None and last.epoch == entry.epoch:
            return self if last.checkpoint_id == entry.checkpoint_id else recorded
        counts = self._counts_of(entry.is_savepoint)
        return recorded._with_counts(entry.is_savepoint, replace(counts, restored=counts.restored + 1))

    def rejected_once(self, reason: str) -> OperatorStatistics:
        """Return the statistics with an additional checkpoint that failed before it had an id."""
        return replace(self, rejected=self.rejected + 1, failures=_incremented(self.failures, reason))

    def with_refusal(self, refusal: Refusal) -> OperatorStatistics:
        """Return the statistics with a refused task, once even if the task tries again."""
        others = (each for each in self.refusals if (each.airflow, each.code) != (refusal.airflow, refusal.code))
        return replace(self, refusals=(refusal, *others)[:_MAX_REFUSALS])

    @property
    def has_had_state(self) -> bool:
        """Whether the operator ever completed or restored a checkpoint."""
        return any(counts.completed or counts.restored for counts in (self.checkpoints, self.savepoints))

    def has_counted(self, checkpoint_id: int) -> bool:
        """Return whether a recently ended checkpoint was counted."""
        return checkpoint_id in self.counted_ids

    def is_late(self, checkpoint_id: int) -> bool:
        """Return whether a failed checkpoint was acknowledged after its end."""
        entries = (*self.history, *filter(None, (self.latest_failed,)))
        return any(entry.late_at is not None for entry in entries if entry.checkpoint_id == checkpoint_id)

    def annotated(self, checkpoint_id: int, **changes: Any) -> OperatorStatistics:
        """Return the statistics with changed values of a failed checkpoint that is already counted."""

        def annotate(entry: CheckpointEntry) -> CheckpointEntry:
            is_match = entry.checkpoint_id == checkpoint_id and entry.status == CheckpointStatus.ABORTED
            return replace(entry, **changes) if is_match else entry

        latest = None if self.latest_failed is None else annotate(self.latest_failed)
        return replace(self, history=tuple(annotate(entry) for entry in self.history), latest_failed=latest)

    @classmethod
    def in_view(cls, view: JobView, operator_id: OperatorId) -> OperatorStatistics:
        """Return the statistics of an operator of a job."""
        return cls.of(next((s for s in view.statistics if s.operator_id == operator_id), None))

    @classmethod
    def of(cls, record: StatisticsRecord | None) -> OperatorStatistics:
        """Parse the statistics in a row, and return empty statistics if there is no row or it cannot be read."""
        if record is None:
            return cls()
        try:
            return decode(cls, record.content)
        except MalformedMessageError as error:
            # Unreadable statistics must not fail a checkpoint.
            log.warning("Resetting the statistics of operator %s, which cannot be read: %r", record.operator_id, error)
            return cls()

    def _counted(self, entry: CheckpointEntry) -> OperatorStatistics:
        counts = self._counts_of(entry.is_savepoint)
        if entry.status == CheckpointStatus.COMPLETED:
            return self._with_counts(entry.is_savepoint, replace(counts, completed=counts.completed + 1))
        return self._with_counts(entry.is_savepoint, replace(counts, failed=counts.failed + 1))

    def _completed(self, entry: CheckpointEntry) -> OperatorStatistics:
        updated = replace(
            self,
            state_size=self.state_size.added(entry.state_size_bytes),
            full_size=self.full_size.added(entry.full_size_bytes),
            duration=self.duration.added((entry.duration or timedelta(0)) // _MILLISECOND),
        )
        if entry.is_savepoint:
            return replace(updated, latest_savepoint=_newer(self.latest_savepoint, entry))
        return replace(updated, latest_completed=_newer(self.latest_completed, entry))

    def _failed(self, entry: CheckpointEntry) -> OperatorStatistics:
        return replace(
            self,
            failures=_incremented(self.failures, entry.failure_reason or ""),
            latest_failed=_newer(self.latest_failed, entry),
        )

    def _counts_of(self, is_savepoint: bool) -> CheckpointStatsCounts:
        return self.savepoints if is_savepoint else self.checkpoints

    def _with_counts(self, is_savepoint: bool, counts: CheckpointStatsCounts) -> OperatorStatistics:
        return replace(self, savepoints=counts) if is_savepoint else replace(self, checkpoints=counts)


def load(tx: JobTransaction, operator_id: OperatorId) -> OperatorStatistics:
    """Return the statistics of an operator."""
    return OperatorStatistics.of(tx.statistics(operator_id))


def save(tx: JobTransaction, operator_id: OperatorId, statistics: OperatorStatistics) -> None:
    """Save the statistics of an operator."""
    tx.save_statistics(StatisticsRecord(job_id=tx.job.job_id, operator_id=operator_id, content=encode(statistics)))


def ended(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    """Count a checkpoint that this transaction completed or aborted."""
    attempt = tx.attempt(checkpoint.operator_id, checkpoint.epoch)
    entry = CheckpointEntry.of(checkpoint, attempt)
    save(tx, checkpoint.operator_id, load(tx, checkpoint.operator_id).ended(entry))


def restored(tx: JobTransaction, attempt: AttemptRecord, checkpoint: CheckpointRecord) -> None:
    """Count the restore of an attempt once."""
    known = load(tx, attempt.operator_id)
    changed = known.restored(RestoredEntry.of(checkpoint, attempt, tx.now))
    if changed != known:
        save(tx, attempt.operator_id, changed)


def refused(tx: JobTransaction, operator_id: OperatorId, owner: AttemptOwner, error: StateCheckError) -> None:
    """Record a task that was refused, unless its coordinates, which a page compares, are too long for the row."""
    if json_size(owner.airflow) <= _COORDINATES_BYTES:
        save(tx, operator_id, load(tx, operator_id).with_refusal(Refusal.of(owner, error, tx.now)))


def admitted(tx: JobTransaction, operator_id: OperatorId, owner: AttemptOwner, *, is_new: bool) -> None:
    """
    Remove the refusals of a task that has registered.

    :param is_new: Whether it is the first attempt of its operator, whose refusals another operator of the job has.
    """
    for row in tx.view().statistics if is_new else filter(None, (tx.statistics(operator_id),)):
        known = OperatorStatistics.of(row)
        left = tuple(each for each in known.refusals if not each.is_of(owner))
        if left != known.refusals:
            save(tx, row.operator_id, replace(known, refusals=left))


def readable_refusals(view: JobView, permitted: Callable[[str], bool]) -> JobView:
    """
    Return a view without the refusals of tasks of other Dags than the permitted ones.

    :param permitted: Returns whether the reader of the view may read a Dag, which need not be a Dag of the job.
    """
    rows = []
    for row in view.statistics:
        known = OperatorStatistics.of(row) if row.content.get("refusals") else OperatorStatistics()
        dags = ((each, dict(each.airflow).get("dag_id")) for each in known.refusals)
        shown = tuple(each for each, dag_id in dags if dag_id is None or permitted(dag_id))
        is_whole = shown == known.refusals
        rows.append(row if is_whole else replace(row, content=encode(replace(known, refusals=shown))))
    return replace(view, statistics=tuple(rows))


def acknowledged_late(tx: JobTransaction, aborted: CheckpointRecord, **found: Any) -> None:
    """
    Record the time of the first late acknowledgement of an aborted checkpoint, and what all of them say so far.

    :param found: What the acknowledgements say, by the fields of ``CheckpointEntry``.
    """
    known = load(tx, aborted.operator_id)
    late = {} if known.is_late(aborted.checkpoint_id) else {"late_at": tx.now}
    changed = known.annotated(aborted.checkpoint_id, **late, **found)
    if changed != known:
        save(tx, aborted.operator_id, changed)


def _newest_first(entries: Iterable[CheckpointEntry]) -> tuple[CheckpointEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.checkpoint_id, reverse=True))


def _newer(known: CheckpointEntry | None, entry: CheckpointEntry) -> CheckpointEntry:
    return entry if known is None or entry.checkpoint_id > known.checkpoint_id else known


def _incremented(counts: tuple[tuple[str, int], ...], key: str) -> tuple[tuple[str, int], ...]:
    known = dict(counts)
    return tuple(sorted((known | {key: known.get(key, 0) + 1}).items()))


def truncated_cause(text: str) -> str:
    """Truncate the cause of a failure to its maximum size in a row."""
    return truncated(text, _CAUSE_BYTES)


def truncated_counts(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Truncate counts to their maximum number and size in a row."""
    return tuple((truncated(key, _KEY_BYTES), count) for key, count in sorted(counts.items())[:_MAX_COUNTS])


def truncated_location(location: str) -> str:
    """Return a URI, or an empty string if it is too long; a truncated URI would be useless."""
    return location if json_size(location) <= _LOCATION_BYTES else ""


def _label(attempt: AttemptRecord | None) -> str:
    return "" if attempt is None else truncated(attempt.owner.label, _LABEL_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsSnapshot(CheckpointStats):
    """Checkpoint statistics of one operator at a time, including the checkpoints in progress."""

    uid: str
    counts: CheckpointStatsCounts
    """Checkpoints and savepoints, including those that failed before they had an id."""
    awaiting_discard: int
    """Number of ended checkpoints whose files are not deleted yet."""


def refusals_of(view: JobView) -> tuple[Refusal, ...]:
    """Return the recorded refusals of a job."""
    of_operators = (OperatorStatistics.of(each).refusals for each in view.statistics)
    return tuple(refusal for refusals in of_operators for refusal in refusals)


def statistics_of(
    view: JobView, operator: OperatorRecord, *, history_size: int = HISTORY_SIZE
) -> CheckpointStatsSnapshot:
    """
    Return the statistics of one operator.

    :param history_size: Maximum length of the history, at most ``HISTORY_SIZE``.
    """
    known, rows = OperatorStatistics.in_view(view, operator.operator_id), view.of_operator(operator.operator_id)
    pending = [row for row in rows if row.is_in_progress and not row.is_adoption]
    begun = sum(row.properties.is_savepoint for row in pending)
    checkpoints = replace(known.checkpoints, in_progress=len(pending) - begun)
    savepoints = replace(known.savepoints, in_progress=begun)
    of_ended = {each.name: getattr(known, each.name) for each in fields(CheckpointStats)}
    current = {
        "checkpoints": checkpoints,
        "savepoints": savepoints,
        "history": _history(view, known, pending)[: min(history_size, HISTORY_SIZE)],
    }
    return CheckpointStatsSnapshot(
        **of_ended | current,
        uid=operator.uid,
        counts=_sum(checkpoints, savepoints, known.rejected),
        awaiting_discard=sum(row.awaits_discard for row in rows),
    )


def _sum(checkpoints: CheckpointStatsCounts, savepoints: CheckpointStatsCounts, rejected: int) -> CheckpointStatsCounts:
    return CheckpointStatsCounts(
        restored=checkpoints.restored + savepoints.restored,
        in_progress=checkpoints.in_progress + savepoints.in_progress,
        completed=checkpoints.completed + savepoints.completed,
        failed=checkpoints.failed + savepoints.failed + rejected,
    )


def _history(view: JobView, known: OperatorStatistics, pending: list[CheckpointRecord]) -> tuple[CheckpointEntry, ...]:
    attempts = {(a.operator_id, a.epoch): a for a in view.attempts}
    started = (CheckpointEntry.of(row, attempts.get((row.operator_id, row.epoch))) for row in pending)
    return _newest_first((*started, *known.history))
