"""
Checkpoint interval of an attempt: configured, or computed by Young and Daly's formula.

Checkpoints cost time, and a failure costs the work since the last checkpoint. Young's first-order approximation of the
interval with the least loss is the square root of twice the cost of a checkpoint times the mean time between failures
(J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9), 1974,
doi:10.1145/361147.361115). Daly's higher-order estimate is also accurate if a checkpoint costs much of that time (J. T.
Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems
22(3), 2006, doi:10.1016/j.future.2004.11.016).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.config import AUTO, CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.endings import stopping_savepoint
from airflow_provider_statecheck.spark.stage_costs import StageCosts
from airflow_provider_statecheck.spark.status_log import readable_seconds

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


log = logging.getLogger(__name__)

_PRIOR_SECONDS = 24 * 3_600.0
"""Running time with one failure that is added to each history: a prior of one failure a day."""
_FAILED = (AttemptStatus.FAILED, AttemptStatus.FENCED)


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """Number of failures of an operator and the running time of its attempts."""

    failures: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, view: JobView, operator_id: OperatorId) -> FailureHistory:
        """
        Return the history of an operator, including its current attempt.

        A fenced attempt counts as a failure: it ended without closing.
        """
        attempts = view.attempts_of(operator_id)
        failures = sum(a.status in _FAILED and not _was_stopped(view, a) for a in attempts)
        return cls(failures, sum(_seconds(view, attempt) for attempt in attempts))

    @property
    def mean_time_between_failures(self) -> float:
        """The expected time between two failures, in seconds."""
        return (_PRIOR_SECONDS + self.seconds) / (1 + self.failures)


def measured_costs(view: JobView, operator_id: OperatorId) -> tuple[float, ...]:
    """Return the durations of an operator's recorded checkpoints, in seconds, oldest first."""
    completed = (
        c for c in view.of_operator(operator_id) if c.completed_at is not None and not c.properties.is_savepoint
    )
    return tuple((c.completed_at - c.triggered_at).total_seconds() for c in completed if c.completed_at is not None)


def _was_stopped(view: JobView, attempt: AttemptRecord) -> bool:
    return stopping_savepoint(view, AttemptRef.of(attempt)) is not None


def _seconds(view: JobView, attempt: AttemptRecord) -> float:
    return (_end(view, attempt) - attempt.registered_at).total_seconds()


def _end(view: JobView, attempt: AttemptRecord) -> datetime:
    if attempt.status is AttemptStatus.FENCED:
        # Its recorded end is the start of the next attempt, which may be long after it was killed.
        return max(_checkpoint_times(view, attempt), default=attempt.registered_at)
    return attempt.ended_at or view.read_at


def _checkpoint_times(view: JobView, attempt: AttemptRecord) -> Iterable[datetime]:
    taken = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch)
    return (c.completed_at or c.triggered_at for c in taken)


SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 3_600.0
"""Limits of an interval that is computed."""
_ASSUMED_COST_SECONDS = 1.0
_NEWEST_WEIGHT = 0.3


def optimal_interval(cost: float, mean_time_between_failures: float) -> float:
    """
    Return the time from the end of a checkpoint to the start of the next with the least expected loss, in seconds.

    :param cost: Duration of a checkpoint, in seconds.
    :param mean_time_between_failures: Mean time between failures, in seconds.
    :raises InvalidConfigurationError: for a negative cost, or a time between failures of 0 or less.
    """
    if cost < 0 or mean_time_between_failures <= 0:
        raise InvalidConfigurationError(
            f"Expected a cost of at least 0 s and more than 0 s between failures, found {cost} s and "
            f"{mean_time_between_failures} s; pass positive durations."
        )
    if cost >= 2 * mean_time_between_failures:
        return mean_time_between_failures
    ratio = cost / (2 * mean_time_between_failures)
    young = math.sqrt(2 * cost * mean_time_between_failures)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class AutoInterval:
    """
    Checkpoint interval that is computed from the failures and the checkpoint costs of a job.

    The cost is a weighted average that favors recent checkpoints. Before the first one, a cost of a second is assumed.

    :param history: Failures of the operator.
    :param costs: Durations of earlier checkpoints in seconds, oldest first.
    """

    def __init__(self, history: FailureHistory, costs: Iterable[float] = ()) -> None:
        self._history = history
        self._cost: float | None = None
        for cost in costs:
            self.observe(cost)

    def observe(self, cost: float) -> None:
        """Update the average cost by the duration of a checkpoint, in seconds."""
        weight = _NEWEST_WEIGHT
        self._cost = cost if self._cost is None else weight * cost + (1 - weight) * self._cost

    @property
    def seconds(self) -> float:
        """The time from a completed checkpoint to the next, in seconds."""
        return min(max(self._optimum, SHORTEST_SECONDS), LONGEST_SECONDS)

    @property
    def reason(self) -> str:
        """The interval and the figures that it is computed from, for the log."""
        return f"every {readable_seconds(self.seconds)}{self._limit_text}: {self._cost_text}, {self._failures_text}"

    @property
    def _optimum(self) -> float:
        cost = _ASSUMED_COST_SECONDS if self._cost is None else self._cost
        return optimal_interval(cost, self._history.mean_time_between_failures)

    @property
    def _limit_text(self) -> str:
        if SHORTEST_SECONDS <= self._optimum <= LONGEST_SECONDS:
            return ""
        return f" ({'lower' if self._optimum < SHORTEST_SECONDS else 'upper'} limit)"

    @property
    def _cost_text(self) -> str:
        if self._cost is None:
            return f"assumed checkpoint cost {readable_seconds(_ASSUMED_COST_SECONDS)}"
        return f"checkpoint cost {readable_seconds(self._cost)}"

    @property
    def _failures_text(self) -> str:
        failures, seconds = self._history.failures, self._history.seconds
        if not failures and seconds < 1:
            return "assumed 1 failure in 24 h"
        number = "1 failure" if failures == 1 else f"{failures} failures"
        return f"{number} in {readable_seconds(seconds)}"


_LOGGED_CHANGE = 1.5
"""Factor by which an interval must change to be logged again."""


class Pace:
    """
    Checks whether the interval since the last completed checkpoint has passed.

    The last checkpoint of a loop and explicit checkpoints do not wait for it.

    :param checkpoint_interval: Least time between two checkpoints, and before the first; a bare number is milliseconds,
        ``None`` is no limit, and an :class:`AutoInterval` changes with the measured costs.
    :param min_pause: Least time after a completed checkpoint; does not apply before the first.
    :raises InvalidConfigurationError: for a duration out of range.
    """

    def __init__(
        self,
        checkpoint_interval: AutoInterval | timedelta | str | int | None,
        min_pause: timedelta | str | int | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._auto = checkpoint_interval if isinstance(checkpoint_interval, AutoInterval) else None
        config = CheckpointConfig()
        config.checkpoint_interval = None if isinstance(checkpoint_interval, AutoInterval) else checkpoint_interval
        pause = CheckpointConfig.min_pause_between_checkpoints
        config.min_pause_between_checkpoints = None if min_pause is None else pause.checked("min_pause", min_pause)
        self._between = (config.effective_interval or config.effective_min_pause).total_seconds()
        self._monotonic = monotonic
        self._begin = monotonic()
        self._wait = (config.checkpoint_interval or timedelta(0)).total_seconds()
        self._logged_seconds: float | None = None
        if self._auto is not None:
            self._wait = self._auto.seconds
            self._log(self._auto)

    @property
    def interval_seconds(self) -> float | None:
        """The wanted time between two checkpoints; ``None`` if there is no limit."""
        return self._wait or None

    def allows(self) -> bool:
        """Return whether an automatic checkpoint may be taken now."""
        return self._monotonic() - self._begin >= self._wait

    def completed(self, cost_seconds: float | None = None) -> None:
        """
        Start the next interval after a completed checkpoint.

        :param cost_seconds: Duration of the checkpoint; ``None`` if unknown.
        """
        self._begin = self._monotonic()
        self._wait = self._between
        self.observed(cost_seconds)

    def observed(self, cost_seconds: float | None) -> None:
        """Update the current interval by the duration of the last checkpoint; ``None`` if unknown."""
        if self._auto is not None:
            if cost_seconds is not None:
                self._auto.observe(cost_seconds)
            self._wait = max(self._between, self._auto.seconds)
            self._log(self._auto)

    def _log(self, auto: AutoInterval) -> None:
        last = self._logged_seconds
        if last is None or not last / _LOGGED_CHANGE < auto.seconds < last * _LOGGED_CHANGE:
            self._logged_seconds = auto.seconds
            log.info("Checkpoints are taken %s.", auto.reason)


def pace_of(
    attempt: StageAttempt,
    checkpoint_interval: timedelta | str | int | None,
    min_pause: timedelta | str | int | None,
    monotonic: Callable[[], float],
    costs: Iterable[float] | None = None,
) -> Pace:
    """
    Return the pace of an attempt's automatic checkpoints.

    :param checkpoint_interval: As for :class:`Pace`, or ``auto``.
    :param min_pause: As for :class:`Pace`.
    :param costs: Durations of earlier checkpoints in seconds, oldest first; by default those of the rows.
    :raises InvalidConfigurationError: for a duration out of range.
    """
    if checkpoint_interval != AUTO:
        return Pace(checkpoint_interval, min_pause, monotonic)
    view, operator_id = attempt.job_view(), attempt.grant.attempt.operator_id
    known = measured_costs(view, operator_id) if costs is None else costs
    return Pace(AutoInterval(FailureHistory.of(view, operator_id), known), min_pause, monotonic)


class Rhythm:
    """
    Decides after each item of a loop whether to take a checkpoint.

    A checkpoint that the pace or the budget postpones is taken after the first item that both allow.

    :param every: Number of items after which a checkpoint is due.
    :param every_seconds: Age of the last checkpoint after which one is due too, ``None`` for no limit.
    """

    def __init__(
        self,
        every: int,
        every_seconds: float | None,
        costs: StageCosts,
        pace: Pace,
        monotonic: Callable[[], float],
    ) -> None:
        self._every = every
        self._every_seconds = every_seconds
        self._costs = costs
        self._pace = pace
        self._monotonic = monotonic
        self._is_late = False
        self._items_since_due = 0
        self._begin()

    def is_time(self) -> bool:
        """Count an item and return whether to take a checkpoint after it."""
        self.unsaved += 1
        self._items_since_due += 1
        is_due = self._is_due()
        if not (is_due or self._is_late):
            return False
        if not self._pace.allows():
            self._is_late = True
            return False
        if self._costs.allow():
            return True
        if is_due:
            self._postpone()
        return False

    def taken(self) -> None:
        """Reset the counts after a checkpoint."""
        self._is_late = False
        self._items_since_due = 0
        self._begin()

    def _begin(self) -> None:
        self.unsaved = 0
        """Number of finished items since the loop's last checkpoint."""
        self._last = self._monotonic()

    def _is_due(self) -> bool:
        is_old = self._every_seconds is not None and self._monotonic() - self._last >= self._every_seconds
        return self._items_since_due >= self._every or is_old

    def _postpone(self) -> None:
        self._costs.put_off += 1
        self._is_late = True
        self._items_since_due = 0
        self._last = self._monotonic()
