"""The statistics of one operator as a value: what each event makes of them, and how they are kept in a row."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.statistics.entries import CheckpointEntry, RestoredEntry
from airflow_provider_statecheck.checkpoint.statistics.summary import StatsSummary
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord

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
            latest_restored=RestoredEntry.from_json(restored) if (restored := content["latest_restored"]) else None,
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
