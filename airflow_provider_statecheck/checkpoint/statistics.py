"""
Checkpoint statistics of one operator, recorded with the transitions that they count.

So nothing is counted that was rolled back, and nothing twice: a row ends once, however often its message comes.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    StatisticsRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction

_LOCATION_BYTES = 1500
_CAUSE_BYTES = 600
_LABEL_BYTES = 300
_KEY_BYTES = 40
_MOST_COUNTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One checkpoint or savepoint as it stood when it ended, or as it stands while it is in progress."""

    checkpoint_id: int
    kind: str
    is_savepoint: bool
    status: str
    epoch: int
    """Of the attempt that took it."""
    attempt: str = ""
    """Who ran that attempt, for people."""
    triggered_at: datetime
    ended_at: datetime | None = None
    """When it was completed or aborted."""
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    location: str = ""
    """Its directory; empty if the URI is too long to be kept."""
    counts: tuple[tuple[str, int], ...] = ()
    failure_reason: str | None = None
    failure_cause: str = ""
    late_at: datetime | None = None
    """When it was acknowledged although it had been aborted."""

    @property
    def is_interrupted(self) -> bool:
        """Tell whether its attempt ended first, so that it neither completed nor failed."""
        return self.failure_reason == CheckpointFailureReason.ATTEMPT_ENDED.value

    @property
    def duration(self) -> timedelta | None:
        """Return how long it was in progress, ``None`` if it still is."""
        return None if self.ended_at is None else self.ended_at - self.triggered_at

    @classmethod
    def of(cls, checkpoint: CheckpointRecord, attempt: AttemptRecord | None) -> CheckpointEntry:
        """
        Return what is remembered of a checkpoint.

        :param attempt: The attempt that took it, ``None`` if nobody knows it any more.
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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return _plain(_values(self)) | {"counts": dict(self.counts)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CheckpointEntry:
        """Return what :meth:`to_json` gave."""
        fields_of_it = {name: value for name, value in content.items() if name != "counts"}
        return cls(**_typed(fields_of_it), counts=tuple(content.get("counts", {}).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredEntry:
    """The checkpoint that an attempt began from."""

    checkpoint_id: int
    is_savepoint: bool
    restored_at: datetime
    epoch: int
    """Of the attempt that restored it."""
    attempt: str = ""
    """Who ran that attempt, for people."""
    full_size_bytes: int = 0
    location: str = ""

    @classmethod
    def of(cls, checkpoint: CheckpointRecord, attempt: AttemptRecord, restored_at: datetime) -> RestoredEntry:
        """Return what is remembered of a restore."""
        return cls(
            checkpoint_id=checkpoint.checkpoint_id,
            is_savepoint=checkpoint.properties.is_savepoint,
            restored_at=restored_at,
            epoch=attempt.epoch,
            attempt=_label(attempt),
            full_size_bytes=checkpoint.full_size_bytes,
            location=truncated_location(checkpoint.location),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return _plain(_values(self))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RestoredEntry:
        """Return what :meth:`to_json` gave."""
        return cls(**_typed(content))


def _values(entry: CheckpointEntry | RestoredEntry) -> dict[str, Any]:
    # Not asdict(), which copies everything to its depths at each transition.
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def truncated_cause(text: str) -> str:
    """Return as much of a message as is kept."""
    return _clipped(text, _CAUSE_BYTES)


def truncated_counts(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Return as many counts as are kept."""
    return tuple((_clipped(key, _KEY_BYTES), count) for key, count in sorted(counts.items())[:_MOST_COUNTS])


def truncated_location(location: str) -> str:
    """Return a URI, or nothing: half of one leads nowhere."""
    return location if _size(location) <= _LOCATION_BYTES else ""


def _label(attempt: AttemptRecord | None) -> str:
    return "" if attempt is None else _clipped(attempt.owner.label, _LABEL_BYTES)


def _clipped(text: str, most: int) -> str:
    if _size(text) <= most:
        return text
    kept = text[:most]
    while _size(kept) > most:
        kept = kept[: len(kept) * 9 // 10]
    return f"{kept}…"


def _size(text: str) -> int:
    # What counts are the bytes in the row, where one character may take twelve.
    return len(json.dumps(text))


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in content.items()}


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    times = {key for key in content if key.endswith("_at") and content[key] is not None}
    return {key: datetime.fromisoformat(value) if key in times else value for key, value in content.items()}


NEWEST_VALUES: Final = 200
"""Of how many values percentiles are taken: the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSummary:
    """Minimum, average and maximum of all values, percentiles of the newest."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None
    newest: tuple[int, ...] = ()

    @property
    def average(self) -> float | None:
        """Return the mean of all values."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> int | None:
        """
        Return the smallest of the newest values that so many percent of them do not exceed.

        :param percent: More than 0, at most 100.
        """
        if not self.newest:
            return None
        rank = math.ceil(percent / 100 * len(self.newest))
        return sorted(self.newest)[max(rank, 1) - 1]

    def added(self, value: int) -> StatsSummary:
        """Return the summary with one more value."""
        return StatsSummary(
            count=self.count + 1,
            total=self.total + value,
            minimum=value if self.minimum is None else min(self.minimum, value),
            maximum=value if self.maximum is None else max(self.maximum, value),
            newest=(*self.newest, value)[-NEWEST_VALUES:],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "count": self.count,
            "total": self.total,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "newest": list(self.newest),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StatsSummary:
        """Return what :meth:`to_json` gave."""
        return cls(**content | {"newest": tuple(content["newest"])})


log = logging.getLogger(__name__)

HISTORY_SIZE: Final = 10
"""How many ended checkpoints are remembered one by one."""
_REMEMBERED_IDS = 64
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCounts:
    """How many snapshots of one kind came to which end."""

    completed: int = 0
    failed: int = 0
    restored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """
    All that is kept of the ended checkpoints of an operator.

    What is in progress is not part of it: rows tell that, so that it can neither be lost nor counted twice.
    """

    checkpoints: EndedCounts = field(default_factory=EndedCounts)
    savepoints: EndedCounts = field(default_factory=EndedCounts)
    rejected: int = 0
    """How many failed before they had an id."""
    failures: tuple[tuple[str, int], ...] = ()
    """How many failed for which reason."""
    state_size: StatsSummary = field(default_factory=StatsSummary)
    full_size: StatsSummary = field(default_factory=StatsSummary)
    duration: StatsSummary = field(default_factory=StatsSummary)
    """In milliseconds."""
    history: tuple[CheckpointEntry, ...] = ()
    """Newest first."""
    latest_completed: CheckpointEntry | None = None
    latest_savepoint: CheckpointEntry | None = None
    latest_failed: CheckpointEntry | None = None
    latest_restored: RestoredEntry | None = None
    counted_ids: tuple[int, ...] = field(default=(), repr=False)
    """The checkpoints that were counted last, so that a report which comes later than the row does not count again."""

    def ended(self, entry: CheckpointEntry) -> OperatorStatistics:
        """Return the statistics with one more checkpoint that was completed or aborted."""
        known = replace(
            self,
            history=_newest_first((entry, *self.history))[:HISTORY_SIZE],
            counted_ids=(*self.counted_ids, entry.checkpoint_id)[-_REMEMBERED_IDS:],
        )
        if entry.is_interrupted:
            return known
        counted = known._counted(entry)
        return counted._completed(entry) if entry.status == CheckpointStatus.COMPLETED else counted._failed(entry)

    def restored(self, entry: RestoredEntry) -> OperatorStatistics:
        """Return the statistics with the restore of an attempt, which counts once however often it is told."""
        last = self.latest_restored
        kept = replace(self, latest_restored=entry)
        if last is not None and last.epoch == entry.epoch:
            return self if last.checkpoint_id == entry.checkpoint_id else kept
        counts = self._counts_of(entry.is_savepoint)
        return kept._with_counts(entry.is_savepoint, replace(counts, restored=counts.restored + 1))

    def rejected_once(self, reason: str) -> OperatorStatistics:
        """Return the statistics with one more checkpoint that failed before it had an id."""
        return replace(self, rejected=self.rejected + 1, failures=_one_more(self.failures, reason))

    @property
    def has_had_state(self) -> bool:
        """Whether the operator ever completed or restored a snapshot."""
        return any(counts.completed or counts.restored for counts in (self.checkpoints, self.savepoints))

    def has_counted(self, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint that ended not long ago was counted."""
        return checkpoint_id in self.counted_ids

    def is_late(self, checkpoint_id: int) -> bool:
        """Tell whether a failed checkpoint was acknowledged after all."""
        entries = (*self.history, *filter(None, (self.latest_failed,)))
        return any(entry.late_at is not None for entry in entries if entry.checkpoint_id == checkpoint_id)

    def annotated(self, checkpoint_id: int, **changes: Any) -> OperatorStatistics:
        """Return the statistics with details of a failed checkpoint that came to be known after it was counted."""

        def told(entry: CheckpointEntry) -> CheckpointEntry:
            is_meant = entry.checkpoint_id == checkpoint_id and entry.status == CheckpointStatus.ABORTED
            return replace(entry, **changes) if is_meant else entry

        latest = None if self.latest_failed is None else told(self.latest_failed)
        return replace(self, history=tuple(told(entry) for entry in self.history), latest_failed=latest)

    def to_content(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {
            "checkpoints": asdict(self.checkpoints),
            "savepoints": asdict(self.savepoints),
            "rejected": self.rejected,
            "failures": dict(self.failures),
            "state_size_bytes": self.state_size.to_json(),
            "full_size_bytes": self.full_size.to_json(),
            "duration_milliseconds": self.duration.to_json(),
            "history": [entry.to_json() for entry in self.history],
            "latest_completed": _optional(self.latest_completed),
            "latest_savepoint": _optional(self.latest_savepoint),
            "latest_failed": _optional(self.latest_failed),
            "latest_restored": _optional(self.latest_restored),
            "counted_ids": list(self.counted_ids),
        }

    @classmethod
    def of(cls, record: StatisticsRecord | None) -> OperatorStatistics:
        """Return what a row keeps; one that another version wrote so that it cannot be read counts as none."""
        if record is None:
            return cls()
        try:
            return cls._read(record.content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Counting is never a reason to fail a checkpoint.
            log.warning("The statistics of operator %s begin anew, they cannot be read: %r", record.operator_id, error)
            return cls()

    @classmethod
    def _read(cls, content: dict[str, Any]) -> OperatorStatistics:
        return cls(
            checkpoints=EndedCounts(**content["checkpoints"]),
            savepoints=EndedCounts(**content["savepoints"]),
            rejected=content["rejected"],
            failures=tuple(content["failures"].items()),
            state_size=StatsSummary.from_json(content["state_size_bytes"]),
            full_size=StatsSummary.from_json(content["full_size_bytes"]),
            duration=StatsSummary.from_json(content["duration_milliseconds"]),
            history=tuple(CheckpointEntry.from_json(dict(entry)) for entry in content["history"]),
            latest_completed=_entry(content["latest_completed"]),
            latest_savepoint=_entry(content["latest_savepoint"]),
            latest_failed=_entry(content["latest_failed"]),
            latest_restored=RestoredEntry.from_json(restored_) if (restored_ := content["latest_restored"]) else None,
            counted_ids=tuple(content["counted_ids"]),
        )

    def _counted(self, entry: CheckpointEntry) -> OperatorStatistics:
        counts = self._counts_of(entry.is_savepoint)
        if entry.status == CheckpointStatus.COMPLETED:
            return self._with_counts(entry.is_savepoint, replace(counts, completed=counts.completed + 1))
        return self._with_counts(entry.is_savepoint, replace(counts, failed=counts.failed + 1))

    def _completed(self, entry: CheckpointEntry) -> OperatorStatistics:
        summed = replace(
            self,
            state_size=self.state_size.added(entry.state_size_bytes),
            full_size=self.full_size.added(entry.full_size_bytes),
            duration=self.duration.added((entry.duration or timedelta(0)) // _MILLISECOND),
        )
        if entry.is_savepoint:
            return replace(summed, latest_savepoint=_newer(self.latest_savepoint, entry))
        return replace(summed, latest_completed=_newer(self.latest_completed, entry))

    def _failed(self, entry: CheckpointEntry) -> OperatorStatistics:
        return replace(
            self,
            failures=_one_more(self.failures, entry.failure_reason or ""),
            latest_failed=_newer(self.latest_failed, entry),
        )

    def _counts_of(self, is_savepoint: bool) -> EndedCounts:
        return self.savepoints if is_savepoint else self.checkpoints

    def _with_counts(self, is_savepoint: bool, counts: EndedCounts) -> OperatorStatistics:
        return replace(self, savepoints=counts) if is_savepoint else replace(self, checkpoints=counts)


def _newest_first(entries: Iterable[CheckpointEntry]) -> tuple[CheckpointEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.checkpoint_id, reverse=True))


def _newer(known: CheckpointEntry | None, entry: CheckpointEntry) -> CheckpointEntry:
    return entry if known is None or entry.checkpoint_id > known.checkpoint_id else known


def _one_more(counts: tuple[tuple[str, int], ...], key: str) -> tuple[tuple[str, int], ...]:
    known = dict(counts)
    return tuple(sorted((known | {key: known.get(key, 0) + 1}).items()))


def _optional(entry: CheckpointEntry | RestoredEntry | None) -> dict[str, Any] | None:
    return None if entry is None else entry.to_json()


def _entry(content: dict[str, Any] | None) -> CheckpointEntry | None:
    return None if content is None else CheckpointEntry.from_json(dict(content))


def load(tx: JobTransaction, operator_id: OperatorId) -> OperatorStatistics:
    """Return the statistics of an operator, empty ones if nothing was counted."""
    return OperatorStatistics.of(tx.statistics(operator_id))


def save(tx: JobTransaction, operator_id: OperatorId, statistics: OperatorStatistics) -> None:
    """Keep the statistics of an operator."""
    tx.save_statistics(StatisticsRecord(job_id=tx.job.job_id, operator_id=operator_id, content=statistics.to_content()))


def ended(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    """Count a checkpoint that has just been completed or aborted."""
    attempt = tx.attempt(checkpoint.operator_id, checkpoint.epoch)
    entry = CheckpointEntry.of(checkpoint, attempt)
    save(tx, checkpoint.operator_id, load(tx, checkpoint.operator_id).ended(entry))


def restored(tx: JobTransaction, attempt: AttemptRecord, checkpoint: CheckpointRecord) -> None:
    """Count what an attempt was restored from, once."""
    known = load(tx, attempt.operator_id)
    changed = known.restored(RestoredEntry.of(checkpoint, attempt, tx.now))
    if changed != known:
        save(tx, attempt.operator_id, changed)


def acknowledged_late(tx: JobTransaction, aborted: CheckpointRecord, message: AcknowledgeCheckpoint) -> None:
    """Remember how large an aborted checkpoint became and how late it was; it stays a failed one."""
    known = load(tx, aborted.operator_id)
    if known.is_late(aborted.checkpoint_id):
        return
    changed = known.annotated(
        aborted.checkpoint_id,
        state_size_bytes=message.state_size_bytes,
        full_size_bytes=message.full_size_bytes,
        counts=truncated_counts(message.counts),
        late_at=tx.now,
    )
    if changed != known:
        save(tx, aborted.operator_id, changed)
