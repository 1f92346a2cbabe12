"""What is remembered of a single checkpoint, of bounded size."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord

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
            location=kept_location(checkpoint.location),
            counts=kept_counts(checkpoint.counts),
            failure_reason=checkpoint.failure_reason,
            failure_cause=kept_cause(checkpoint.failure_message),
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
            location=kept_location(checkpoint.location),
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


def kept_cause(text: str) -> str:
    """Return as much of a message as is kept."""
    return _clipped(text, _CAUSE_BYTES)


def kept_counts(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Return as many counts as are kept."""
    return tuple((_clipped(key, _KEY_BYTES), count) for key, count in sorted(counts.items())[:_MOST_COUNTS])


def kept_location(location: str) -> str:
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
