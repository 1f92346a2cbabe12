"""Queue policy for requested checkpoints: Flink's ``CheckpointRequestDecider``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import RequestStatus, SnapshotRequest

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The decision on a new request."""

    accepted: bool
    """Whether the request may join the queue; otherwise it fails with ``TOO_MANY_CHECKPOINT_REQUESTS``."""
    dropped: tuple[SnapshotRequest, ...] = ()
    """The queued requests that it replaces, which fail with the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision on the queue; an empty choice waits for the next event."""

    run: SnapshotRequest | None = None
    """The request to trigger now."""
    dropped: tuple[SnapshotRequest, ...] = ()
    """The requests that are too early and fail with ``MINIMUM_TIME_BETWEEN_CHECKPOINTS``."""
    retry_in: timedelta | None = None
    """The delay after which the periodic trigger must fire again."""


class CheckpointRequestDecider:
    """
    Decides on requests from the queue and the work in progress.

    Call ``admit`` for each new request. Call ``choose`` after it, and after a trigger, a checkpoint or a cleaning has
    ended.

    :param max_concurrent: The largest number of pending checkpoints, at least 1; forced checkpoints ignore it.
    :param min_pause: The shortest time between the end of a checkpoint and the start of a periodic one.
    :param max_queued: The largest number of queued requests, at least 1.
    :raises InvalidConfigurationError: if a value is out of range.
    """

    def __init__(self, max_concurrent: int, min_pause: timedelta, max_queued: int = MAX_QUEUED_REQUESTS) -> None:
        require("max_concurrent_checkpoints", max_concurrent, lambda n: n >= 1, "at least 1")
        require("min_pause", min_pause, lambda pause: pause >= timedelta(0), "0 or longer")
        require("max_queued_requests", max_queued, lambda n: n >= 1, "at least 1")
        self._max_concurrent = max_concurrent
        self._min_pause = min_pause
        self._max_queued = max_queued

    def admit(self, queue: Sequence[SnapshotRequest], new: SnapshotRequest) -> Admission:
        """
        Return whether a request may join the queue, and the requests that it replaces.

        :param queue: The open requests; requests that are already running do not count.
        :param new: The new request; a request with a queued key is a repetition and is accepted.
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
        Choose the request to trigger now.

        :param queue: The open requests; requests that are already running are ignored.
        :param is_triggering: Whether another checkpoint is being triggered.
        :param pending_count: The number of pending checkpoints.
        :param cleanings: The number of checkpoints that are being deleted.
        :param last_completed_at: The completion time of the last checkpoint, ``None`` if there is none.
        :param now: The current time of the clock that set ``last_completed_at``.
        """
        queued = in_order(queue)
        if is_triggering or not queued or cleanings > self._max_concurrent:
            return Choice()
        head = queued[0]
        if pending_count >= self._max_concurrent and not head.properties.force:
            return Choice()
        remaining = self._remaining_pause(last_completed_at, now)
        if _respects_min_pause(head) and remaining > timedelta(0):
            return Choice(dropped=(head,), retry_in=remaining)
        return Choice(run=head)

    def _remaining_pause(self, last_completed_at: datetime | None, now: datetime) -> timedelta:
        return timedelta(0) if last_completed_at is None else last_completed_at + self._min_pause - now


def in_order(queue: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    """Return the queued requests: savepoints, forced, requested by users, then periodic ones, each oldest first."""
    return sorted((request for request in queue if request.status is RequestStatus.QUEUED), key=_rank)


def _rank(request: SnapshotRequest) -> tuple[bool, bool, bool, datetime, str]:
    properties = request.properties
    # The key orders requests of equal age, and every coordinator makes the same choice.
    return (
        not properties.is_savepoint,
        not properties.force,
        request.is_periodic,
        request.requested_at,
        request.request_key,
    )


def _respects_min_pause(request: SnapshotRequest) -> bool:
    return request.is_periodic and not request.properties.force and not request.properties.is_savepoint
