"""Which queued request to trigger: the policy of the queue, and its choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, RequestStatus

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision on the queue; an empty choice waits for the next event."""

    run: CheckpointRequest | None = None
    """The request to trigger now."""
    dropped: tuple[CheckpointRequest, ...] = ()
    """The requests that are too early and fail with ``MINIMUM_TIME_BETWEEN_CHECKPOINTS``."""
    retry_in_seconds: float | None = None
    """The delay after which the periodic trigger must fire again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestDecider:
    """
    Decides on requests from the queue and the work in progress.

    Call ``admit`` for each new request. Call ``choose`` after it, and after a trigger, a checkpoint or a cleaning has
    ended.

    :raises InvalidConfigurationError: if a value is out of range.
    """

    max_concurrent: int
    """The largest number of pending checkpoints, at least 1; forced checkpoints ignore it."""
    min_pause_seconds: float
    """The shortest time between the end of a checkpoint and the start of a periodic one."""
    max_queued: int = MAX_QUEUED_REQUESTS
    """The largest number of queued requests, at least 1."""

    def __post_init__(self) -> None:
        require("max_concurrent_checkpoints", self.max_concurrent, lambda n: n >= 1, "at least 1")
        require("min_pause", self.min_pause_seconds, lambda pause: pause >= 0, "0 or longer")
        require("max_queued_requests", self.max_queued, lambda n: n >= 1, "at least 1")

    def admit(self, queue: Sequence[CheckpointRequest], new: CheckpointRequest) -> tuple[CheckpointRequest, ...]:
        """
        Return the requests that fail with ``TOO_MANY_CHECKPOINT_REQUESTS``: the new one, or those that it replaces.

        :param queue: The open requests; requests that are already running do not count.
        :param new: The new request; a request with a queued key is a repetition and joins the queue.
        """
        queued = in_order(queue)
        if any(request.request_key == new.request_key for request in queued):
            return ()
        if len(queued) >= self.max_queued and not queued[-1].is_periodic:
            return (new,)
        return tuple(in_order((*queued, new))[self.max_queued :])

    def choose(
        self,
        queue: Sequence[CheckpointRequest],
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
        if is_triggering or not queued or cleanings > self.max_concurrent:
            return Choice()
        head = queued[0]
        if pending_count >= self.max_concurrent and not head.properties.force:
            return Choice()
        remaining = self._remaining_pause(last_completed_at, now)
        if _respects_min_pause(head) and remaining > 0:
            return Choice(dropped=(head,), retry_in_seconds=remaining)
        return Choice(run=head)

    def _remaining_pause(self, last_completed_at: datetime | None, now: datetime) -> float:
        return 0.0 if last_completed_at is None else self.min_pause_seconds - (now - last_completed_at).total_seconds()


def in_order(queue: Sequence[CheckpointRequest]) -> list[CheckpointRequest]:
    """Return the queued requests: savepoints, forced, requested by users, then periodic ones, each oldest first."""
    return sorted((request for request in queue if request.status is RequestStatus.QUEUED), key=_rank)


def _rank(request: CheckpointRequest) -> tuple[bool, bool, bool, datetime, str]:
    properties = request.properties
    # The key orders requests of equal age, and every coordinator makes the same choice.
    return (
        not properties.is_savepoint,
        not properties.force,
        request.is_periodic,
        request.requested_at,
        request.request_key,
    )


def _respects_min_pause(request: CheckpointRequest) -> bool:
    return request.is_periodic and not request.properties.force and not request.properties.is_savepoint
