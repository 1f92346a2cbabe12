"""Decides which requested checkpoint is triggered next: Flink's ``CheckpointRequestDecider``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import RequestStatus, SnapshotRequest

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What happens to a request on its arrival."""

    accepted: bool
    """Whether it may join the queue; if not, it fails with ``TOO_MANY_CHECKPOINT_REQUESTS``."""
    dropped: tuple[SnapshotRequest, ...] = ()
    """Queued ones that give way to it and fail with the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is done with the queue now; if nothing is said, everybody waits for the next event."""

    run: SnapshotRequest | None = None
    """Its checkpoint is to be triggered."""
    dropped: tuple[SnapshotRequest, ...] = ()
    """Those that come too early and fail with ``MINIMUM_TIME_BETWEEN_CHECKPOINTS``."""
    retry_in: timedelta | None = None
    """After which time the periodic trigger is to fire again."""


class CheckpointRequestDecider:
    """
    Decides by the queue and by what is in progress.

    ``admit`` is asked on each arrival; ``choose`` after each arrival and whenever a trigger, a checkpoint or a cleaning
    has come to its end.

    :param max_concurrent: How many checkpoints may be pending at once, 1 or more; a forced one takes no heed of it.
    :param min_pause: What lies between the end of a checkpoint and the start of a periodic one at least.
    :param max_queued: How many requests may wait, 1 or more.
    :raises InvalidConfigurationError: for a number out of its range.
    """

    def __init__(self, max_concurrent: int, min_pause: timedelta, max_queued: int = MAX_QUEUED_REQUESTS) -> None:
        require("max_concurrent_checkpoints", max_concurrent, lambda n: n >= 1, "at least 1")
        require("min_pause", min_pause, lambda pause: pause >= timedelta(0), "no negative time")
        require("max_queued_requests", max_queued, lambda n: n >= 1, "at least 1")
        self._max_concurrent = max_concurrent
        self._min_pause = min_pause
        self._max_queued = max_queued

    def admit(self, queue: Sequence[SnapshotRequest], new: SnapshotRequest) -> Admission:
        """
        Tell whether a request may join the queue, and who has to leave it.

        :param queue: The open requests; those whose checkpoint was triggered take no place.
        :param new: The request; with the key of a queued one it is that one, asked for again.
        """
        queued = in_order(queue)
        if any(request.request_key == new.request_key for request in queued):
            return Admission(accepted=True)
        if len(queued) >= self._max_queued and not queued[-1].is_periodic:
            return Admission(accepted=False)
        surplus = in_order((*queued, new))[self._max_queued :]
        return Admission(accepted=new not in surplus, dropped=tuple(r for r in surplus if r is not new))

    def choose(
        self,
        queue: Sequence[SnapshotRequest],
        *,
        is_triggering: bool,
        pending_count: int,
        cleanings: int,
        last_completed_at: datetime | None,
        now: datetime,
    ) -> Choice:
        """
        Choose the request whose checkpoint is triggered now.

        :param queue: The open requests; those whose checkpoint was triggered are left alone.
        :param is_triggering: Whether another one is being triggered.
        :param pending_count: How many checkpoints are pending.
        :param cleanings: How many checkpoints are being deleted.
        :param last_completed_at: When the last checkpoint was completed, if any was.
        :param now: The time by the clock that dated ``last_completed_at``.
        """
        queued = in_order(queue)
        if is_triggering or not queued or cleanings > self._max_concurrent:
            return Choice()
        head = queued[0]
        if pending_count >= self._max_concurrent and not head.properties.force:
            return Choice()
        remaining = self._remaining_pause(last_completed_at, now)
        if _keeps_the_pause(head) and remaining > timedelta(0):
            return Choice(dropped=(head,), retry_in=remaining)
        return Choice(run=head)

    def _remaining_pause(self, last_completed_at: datetime | None, now: datetime) -> timedelta:
        return timedelta(0) if last_completed_at is None else last_completed_at + self._min_pause - now


def in_order(queue: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    """Return the queued requests: savepoints, then forced ones, then what a user asked for, each the oldest first."""
    return sorted((request for request in queue if request.status is RequestStatus.QUEUED), key=_rank)


def _rank(request: SnapshotRequest) -> tuple[bool, bool, bool, datetime, str]:
    properties = request.properties
    # The key settles which of two equally old ones is first, so that every coordinator chooses the same.
    return (
        not properties.is_savepoint,
        not properties.force,
        request.is_periodic,
        request.requested_at,
        request.request_key,
    )


def _keeps_the_pause(request: SnapshotRequest) -> bool:
    return request.is_periodic and not request.properties.force and not request.properties.is_savepoint
