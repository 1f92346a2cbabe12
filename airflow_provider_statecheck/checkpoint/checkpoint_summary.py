"""
Figures of a checkpoint for display: its content, its durations and the work in progress.

The driver sends them with the acknowledgement, because the server reads no checkpoint storage. No decision depends on
them. They are bounded whatever the user's names and the number of entries are, so that a row stays small.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar, get_type_hints

from airflow_provider_statecheck.checkpoint.codec import classes_of, json_size, storable_text, truncated

log = logging.getLogger(__name__)

MAX_SUMMARY_BYTES: Final = 32 * 1024
"""Maximum size of a summary in a row, as JSON."""

_MAX_BYTES: Final = {"steps": 12_000, "loops": 4_000, "sources": 4_000, "states": 8_000, "open_commits": 2_000}
"""Maximum size of each list as JSON; the rest of the summary is far smaller than the rest of the bound."""
_NEWEST_LAST: Final = frozenset({"steps"})
"""Lists in the order of time, whose last entries are kept."""
_TEXT_BYTES = 300
_LARGEST_NUMBER = 2**53 - 1
"""Largest number that every JSON parser reads exactly."""


class StepOutcome(StrEnum):
    """What an attempt has done with a step."""

    COMPUTED = "computed"
    """Computed and written to a snapshot."""
    RESTORED = "restored"
    """Read from the snapshot of an earlier attempt."""
    SKIPPED = "skipped"
    """Computed without a snapshot, as its ``when`` asks for."""
    HELD = "held"
    """In the checkpoint from an earlier attempt; this attempt has not reached the step."""


class _Bounded:
    """Base of the entries: replaces values that a database cannot store, and truncates long texts."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, _ in _COLUMNS[type(self)]:
            object.__setattr__(self, name, _storable(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary(_Bounded):
    """A step of the stage."""

    name: str
    """Name with its items, such as ``days[2026-01-01]/sessions``."""
    outcome: str
    """A :class:`StepOutcome`, or a value that a newer version has added."""
    seconds: float = 0.0
    """Time to compute and write the step, in the attempt that did so."""
    size_bytes: int = 0
    """Size of its snapshot; 0 without a snapshot."""
    rows: int | None = None
    """Number of rows; ``None`` if it is unknown."""
    parts: int = 0
    """Number of finished parts of a step that is computed in parts; 0 for other steps."""
    share: float | None = 1.0
    """Finished part of the input of such a step, from 0 to 1; ``None`` if it is unknown."""
    bad_parts: int = 0
    """Number of its parts that failed and are left to a later attempt."""

    @property
    def parts_text(self) -> str:
        """
        The progress of a step that is computed in parts, such as ``12 parts, 61 %``.

        Empty for other steps.
        """
        if not self.parts and not self.bad_parts:
            return ""
        share = "" if self.share in (None, 1.0) else f", {math.floor(100 * (self.share or 0.0))} %"
        bad = f", {self.bad_parts} failed" if self.bad_parts else ""
        return f"{self.parts} {'part' if self.parts == 1 else 'parts'}{share}{bad}"

    @property
    def seconds_saved(self) -> float:
        """The time that the restore of the step has saved; 0 unless the attempt has restored it."""
        return self.seconds if self.outcome == StepOutcome.RESTORED else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSummary(_Bounded):
    """A loop of the stage: ``each`` or ``iterate``."""

    name: str
    """Name with the items of the enclosing loops."""
    finished: int
    """Number of finished items of ``each``, or number of the newest iteration that has a snapshot."""
    total: int | None = None
    """Number of all items or iterations; ``None`` if the attempt has not reached the loop."""
    is_iteration: bool = False
    """Whether the loop is ``iterate``, which may end before its last iteration."""
    seconds: float = 0.0
    """Time of the finished items of ``each``, in the attempts that finished them; 0 if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary(_Bounded):
    """Progress of a source."""

    uid: str
    finished_splits: int
    total_splits: int
    remaining_seconds: float | None = None
    """Estimated time to the end of the input at the current rate; ``None`` if the rate is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSummary(_Bounded):
    """A state of a function, or its whole keyed state if only the sum of its states is known."""

    uid: str
    """Uid of the function within its stage."""
    name: str
    kind: str
    """Kind of the state, such as ``value`` or ``map``."""
    type: str
    """Type of its values."""
    keys: int | None = None
    """Number of keys; ``None`` if the state backend does not know it without a scan."""
    size_bytes: int | None = None
    """Size on storage; ``None`` if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """
    Figures of a checkpoint, or of what an attempt has restored.

    The lists are cut to a maximum size. Sums cover all entries, also those that were left out.
    """

    steps: tuple[StepSummary, ...] = ()
    """Steps of the attempt and of the checkpoint, in the order in which the attempt reached them."""
    loops: tuple[LoopSummary, ...] = ()
    sources: tuple[SourceSummary, ...] = ()
    states: tuple[StateSummary, ...] = ()
    open_commits: tuple[str, ...] = ()
    """Committables that the sink had not committed, by checkpoint; they are committed after the acknowledgement."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of entries that were left out, by list; a complete list has none."""
    seconds_saved: float = 0.0
    """Time of the steps, loop items and increments that the attempt has restored instead of computing them."""
    snapshot_seconds: float = 0.0
    """
    Time to write snapshots and state since the previous checkpoint; an estimate if a step is computed as it is written.
    """
    write_seconds: float = 0.0
    """Time to write the ``_metadata`` file and the values of the driver."""
    commit_seconds: float | None = None
    """Time to commit the output of a sink; ``None`` if nothing was committed yet."""
    computing: str = ""
    """What the attempt was working on: a step, an item of a loop or an increment; empty for none of these."""
    computing_after: float = 0.0
    """Time from the registration of the attempt to the start of that work, in seconds."""
    answered_after: float = 0.0
    """
    Time from the registration of the attempt to its newest report of work, in seconds; the coordinator sets it in the
    row of the attempt.
    """
    rows_per_second: float | None = None
    """Rate at which the attempt has read rows; ``None`` for steps that are computed at once."""
    checkpoint_share: float | None = None
    """Part of the time of the task that checkpointing has taken, from 0 to 1; ``None`` if it is unknown."""

    def __post_init__(self) -> None:
        left_out = {name: self.left_out[name] for name in _MAX_BYTES if self.left_out.get(name, 0) > 0}
        for name, max_bytes in _MAX_BYTES.items():
            entries = tuple(map(_storable, getattr(self, name)))
            kept = _fitting(entries, max_bytes, keeps_last=name in _NEWEST_LAST)
            object.__setattr__(self, name, kept)
            if len(kept) < len(entries):
                left_out[name] = left_out.get(name, 0) + len(entries) - len(kept)
        object.__setattr__(self, "left_out", {name: _storable(count) for name, count in left_out.items()})
        for name in _SCALARS:
            object.__setattr__(self, name, _storable(getattr(self, name)))

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> CheckpointSummary | None:
        """
        Parse a summary in a row; return ``None`` if there is none or it cannot be read.

        Views and transitions parse many rows, so it relies on the bounds of what the constructor has accepted.
        """
        if content is None:
            return None
        try:
            lists = {name: tuple(_entry(name, each) for each in content.get(name, ())) for name in _MAX_BYTES}
            return _as_stored(cls, {**content, **lists, "left_out": dict(content.get("left_out", {}))})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Figures that cannot be displayed must not fail a transition.
            log.warning("Ignoring the figures of a checkpoint, which cannot be read: %r", error)
            return None


_SCALARS: Final = (
    *("seconds_saved", "snapshot_seconds", "write_seconds", "commit_seconds"),
    *("computing", "computing_after", "answered_after", "rows_per_second", "checkpoint_share"),
)
_ENTRIES: Final[dict[str, Any]] = {
    "steps": StepSummary,
    "loops": LoopSummary,
    "sources": SourceSummary,
    "states": StateSummary,
}
_COLUMNS: Final[dict[type[Any], tuple[tuple[str, Any], ...]]] = {
    kind: tuple((each.name, each.default) for each in fields(kind)) for kind in (CheckpointSummary, *_ENTRIES.values())
}
"""Names and defaults of the fields, by class."""
_CLASSES: Final = {
    kind: tuple(classes_of(get_type_hints(kind)[name]) for name, _ in columns) for kind, columns in _COLUMNS.items()
}
"""Classes of the values, in the order of the fields."""

Entry = TypeVar("Entry")


def _entry(name: str, content: Any) -> Any:
    kind = _ENTRIES.get(name)
    if kind is None:
        return str(content)
    return _as_stored(kind, content)


def _as_stored(kind: type[Entry], content: Mapping[str, Any]) -> Entry:
    # Without the constructor, whose bounds take ten times as long. A newer version may have added fields.
    values = [content[name] if default is MISSING else content.get(name, default) for name, default in _COLUMNS[kind]]
    if not all(map(isinstance, values, _CLASSES[kind])):
        raise TypeError(f"a value of another class in a {kind.__name__}")
    stored = object.__new__(kind)
    for (name, _), value in zip(_COLUMNS[kind], values, strict=True):
        object.__setattr__(stored, name, value)
    return stored


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return truncated(storable_text(value), _TEXT_BYTES)
    if isinstance(value, float):
        return round(max(value, 0.0), 3) if math.isfinite(value) and value < _LARGEST_NUMBER else 0.0
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, 0), _LARGEST_NUMBER)
    return value


def _content_of(entry: Any) -> Any:
    return entry if isinstance(entry, str) else {name: getattr(entry, name) for name, _ in _COLUMNS[type(entry)]}


def _fitting(entries: tuple[Entry, ...], max_bytes: int, *, keeps_last: bool) -> tuple[Entry, ...]:
    ordered: Iterable[Entry] = reversed(entries) if keeps_last else entries
    kept: list[Entry] = []
    for entry in ordered:
        max_bytes -= json_size(_content_of(entry)) + 2
        if max_bytes < 0:
            break
        kept.append(entry)
    return tuple(reversed(kept) if keeps_last else kept)
