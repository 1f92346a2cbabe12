"""
Clocks, and the monotonic time of a job.

The time of a job never decreases, even if the clocks of two servers differ slightly. A clock that was far ahead and has been
corrected is the exception: the job follows the corrected clock, and times in its rows that are in the future are clamped.
Otherwise all timeouts of the job would stop until the clock catches up.
"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

LONGEST_LEAD = timedelta(minutes=5)
"""Maximum lead of a job's time over the clock, which exceeds usual clock differences between servers."""


class Clock(Protocol):
    """Source of time-zone aware UTC time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...


class SystemClock:
    """System clock of the machine."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)


def time_of_job(seen_at: datetime, now: datetime) -> datetime:
    """
    Return the current time of a job.

    :param seen_at: Time of the latest transaction of the job.
    :param now: Time of the clock.
    """
    return now if is_too_far_ahead(seen_at, now) else max(seen_at, now)


def is_too_far_ahead(time: datetime, now: datetime) -> bool:
    """Return whether a recorded time is so far in the future that the clock must have been wrong."""
    return time > now + LONGEST_LEAD


def clamp_times(record: Record, now: datetime) -> Record:
    """
    Return a record whose times are not later than now.

    A timeout keeps its duration, and a lease expires.

    :param record: Row of a job.
    :param now: Time of the corrected clock.
    """
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    future = {name: value for name, value in values.items() if isinstance(value, datetime) and value > now}
    clamped = dict.fromkeys(future, now)
    if "expires_at" in clamped:
        clamped["expires_at"] = future["expires_at"] - (future.get("triggered_at", now) - now)
    return replace(record, **clamped)
