"""
Charts of a job's pages: sizes and durations of checkpoints, and attempts on a time axis.

Horizontal positions are percentages and vertical ones are pixels, so that a chart fits any width and its text keeps its
size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord

BARS = 40
"""Number of the newest checkpoints in a chart."""
LANES = 8
"""Number of the newest attempts in a timeline."""
CHART_HEIGHT = 96
_LANE_HEIGHT = 26
_GAP = 0.25
"""Space between two bars, as a fraction of a bar with its space."""
_LEAST_WIDTH = 0.6
"""Width of the shortest attempt on the timeline, in percent."""
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
"""Units of durations, each with its number of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One checkpoint in a chart."""

    checkpoint_id: int
    title: str
    x: float
    width: float
    y: float
    height: float
    inner_y: float
    inner_height: float
    """Part of the bar for the new bytes."""
    is_savepoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Chart with one bar for each of the newest completed checkpoints, oldest first."""

    title: str
    summary: str
    """Content of the chart in words."""
    highest: str
    bars: tuple[Bar, ...]
    height: int = CHART_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One attempt on the timeline."""

    epoch: int
    title: str
    status: str
    x: float
    width: float
    y: int
    marks: tuple[tuple[float, str], ...]
    """Position and title of each completed checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The newest attempts of an operator on a time axis, newest first."""

    summary: str
    begin: datetime
    end: datetime
    lanes: tuple[Lane, ...]
    height: int


def size_chart(checkpoints: Sequence[CheckpointRecord]) -> BarChart | None:
    """
    Return the chart of the sizes of checkpoints, with the new bytes of each; ``None`` without any.

    :param checkpoints: Checkpoints of an operator, oldest first.
    """
    completed = _completed(checkpoints)
    values = [c.full_size_bytes for c in completed]
    titles = [
        f"{_name(c)}: {readable_size(c.full_size_bytes)}, {readable_size(c.state_size_bytes)} new" for c in completed
    ]
    new = [min(c.state_size_bytes, c.full_size_bytes) for c in completed]
    return _chart("Size", completed, values, new, titles, lambda value: readable_size(round(value)))


def duration_chart(checkpoints: Sequence[CheckpointRecord]) -> BarChart | None:
    """
    Return the chart of the durations of checkpoints; ``None`` without any.

    :param checkpoints: Checkpoints of an operator, oldest first.
    """
    completed = _completed(checkpoints)
    values = [duration_of(c).total_seconds() for c in completed]
    titles = [f"{_name(c)}: {readable_duration(value)}" for c, value in zip(completed, values, strict=True)]
    return _chart("Duration", completed, values, [0] * len(values), titles, readable_duration)


def duration_of(checkpoint: CheckpointRecord) -> timedelta:
    """Return the time from the trigger of a checkpoint to its end; zero while it is in progress."""
    end = checkpoint.completed_at or checkpoint.ended_at
    return timedelta(0) if end is None else end - checkpoint.triggered_at


def readable_duration(value: timedelta | float) -> str:
    """
    Format a duration with its two largest units, such as ``3 min 5 s``.

    :param value: Duration, as a number in seconds.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s" if seconds >= 0.1 or seconds <= 0 else f"{seconds * 1000:.0f} ms"
    rest, parts = round(seconds), list[str]()
    for unit, length in UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def timeline(
    attempts: Sequence[AttemptRecord], checkpoints: Sequence[CheckpointRecord], now: datetime
) -> Timeline | None:
    """
    Return the newest attempts on a time axis with their completed checkpoints; ``None`` without attempts.

    :param attempts: Attempts of an operator, oldest first.
    :param checkpoints: Checkpoints of the operator.
    :param now: End of an attempt that is running.
    """
    shown = attempts[-LANES:][::-1]
    if not shown:
        return None
    begin, end = min(a.registered_at for a in shown), max(a.ended_at or now for a in shown)
    axis = _Axis(begin, end)
    lanes = tuple(_lane(place, attempt, checkpoints, axis, now) for place, attempt in enumerate(shown))
    return Timeline(
        summary=f"{counted(len(shown), 'attempt')}, newest first: " + "; ".join(lane.title for lane in lanes),
        begin=begin,
        end=end,
        lanes=lanes,
        height=_LANE_HEIGHT * len(lanes),
    )


def _chart(
    title: str,
    completed: Sequence[CheckpointRecord],
    values: Sequence[float],
    inner: Sequence[float],
    titles: Sequence[str],
    text_of: Callable[[float], str],
) -> BarChart | None:
    if not completed:
        return None
    highest, step = max(values) or 1, 100 / len(completed)
    bars = tuple(
        Bar(
            checkpoint_id=checkpoint.checkpoint_id,
            title=titles[place],
            x=round((place + _GAP / 2) * step, 3),
            width=round((1 - _GAP) * step, 3),
            y=_top(values[place] / highest),
            height=round(CHART_HEIGHT - _top(values[place] / highest), 1),
            inner_y=_top(inner[place] / highest, least=0),
            inner_height=round(CHART_HEIGHT - _top(inner[place] / highest, least=0), 1),
            is_savepoint=checkpoint.properties.is_savepoint,
        )
        for place, checkpoint in enumerate(completed)
    )
    summary = (
        f"{title} of the newest {counted(len(bars), 'completed checkpoint')}: "
        f"{text_of(min(values))} to {text_of(max(values))}, newest {text_of(values[-1])}"
    )
    return BarChart(title=title, summary=summary, highest=text_of(max(values)), bars=bars)


def _top(share: float, *, least: float = 1.5) -> float:
    return round(CHART_HEIGHT - max(share * CHART_HEIGHT, least), 1)


def _completed(checkpoints: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
    own = [c for c in checkpoints if c.completed_at is not None and not c.properties.unclaimed]
    return own[-BARS:]


def _name(checkpoint: CheckpointRecord) -> str:
    kind = "Savepoint" if checkpoint.properties.is_savepoint else "Checkpoint"
    return f"{kind} {checkpoint.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class _Axis:
    begin: datetime
    end: datetime

    def percent(self, moment: datetime) -> float:
        length = (self.end - self.begin) / timedelta(seconds=1)
        passed = (moment - self.begin) / timedelta(seconds=1)
        return round(min(max(100 * passed / length, 0), 100), 3) if length > 0 else 0


def _lane(
    place: int, attempt: AttemptRecord, checkpoints: Sequence[CheckpointRecord], axis: _Axis, now: datetime
) -> Lane:
    taken = [c for c in checkpoints if c.epoch == attempt.epoch and c.completed_at is not None]
    x = min(axis.percent(attempt.registered_at), 100 - _LEAST_WIDTH)
    restored = "" if attempt.restored_from is None else f", restored from checkpoint {attempt.restored_from}"
    status = attempt.status.value
    ended = now if attempt.is_running else attempt.ended_at or now
    return Lane(
        epoch=attempt.epoch,
        title=f"attempt {attempt.epoch} {status}{restored}, {counted(len(taken), 'completed checkpoint')}",
        status=status,
        x=x,
        width=max(round(axis.percent(ended) - x, 3), _LEAST_WIDTH),
        y=place * _LANE_HEIGHT,
        marks=tuple((axis.percent(c.completed_at), _name(c)) for c in taken if c.completed_at is not None),
    )
