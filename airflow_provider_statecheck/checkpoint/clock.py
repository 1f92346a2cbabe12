"""
Where time comes from. Injected, so that tests decide what time it is.

A job's time is the server's, and it does not run backwards: two servers whose clocks differ a little must not date a later
transition before an earlier one. A clock may also be far ahead for a while, until somebody sets it right. The job follows it
back then, and the rows that were written meanwhile are dated anew; otherwise the job's time would stand still, and with it
every timeout, until the right clock has caught up.
"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

LONGEST_LEAD = timedelta(minutes=5)
"""How far the time of a job may run ahead of the clock; more than the clocks of two servers differ."""


class Clock(Protocol):
    """A source of time-zone aware UTC time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)


def time_of_job(seen_at: datetime, now: datetime) -> datetime:
    """
    Return what time it is in a job.

    :param seen_at: The latest time that a transition of the job saw.
    :param now: The time by the clock.
    """
    return now if is_too_far_ahead(seen_at, now) else max(seen_at, now)


def is_too_far_ahead(time: datetime, now: datetime) -> bool:
    """Tell whether a time in the past of a row can only come from a clock that was wrong."""
    return time > now + LONGEST_LEAD


def dated_back(record: Record, now: datetime) -> Record:
    """
    Return a record that no clock dated later than now.

    What expires keeps its duration; a lease ends.

    :param record: A row of a job.
    :param now: The time by the clock that was set right.
    """
    times = {field.name: getattr(record, field.name) for field in fields(record)}
    later = {name: time for name, time in times.items() if isinstance(time, datetime) and time > now}
    changed = dict.fromkeys(later, now)
    if "expires_at" in changed:
        changed["expires_at"] = later["expires_at"] - (later.get("triggered_at", now) - now)
    return replace(record, **changed)
