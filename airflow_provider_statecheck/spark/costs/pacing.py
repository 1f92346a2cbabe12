"""
Checkpoint interval of an attempt: configured, or computed by Young and Daly's formula.

Too many checkpoints cost time by themselves, too few cost the work that a failure throws away. Young gave the interval
that loses least as a first approximation, the square root of twice the cost times the mean time between failures (J. W.
Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9), 1974,
doi:10.1145/361147.361115). Daly's higher-order form stays right where a checkpoint costs much of that time (J. T. Daly,
A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22(3),
2006, doi:10.1016/j.future.2004.11.016).
"""

from __future__ import annotations

import logging
import math
import time
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
from airflow_provider_statecheck.spark.costs.stage_costs import StageCosts
from airflow_provider_statecheck.spark.status_log import readable_seconds, stopping_savepoint

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


_ASSUMED_SECONDS = 24 * 3_600.0
"""What one failure is assumed in, before there is any history; it counts as one more failure in so much more time."""
_FAILED = (AttemptStatus.FAILED, AttemptStatus.FENCED)


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """Failures, and how long the tries ran in which they happened."""

    failures: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, view: JobView, operator_id: OperatorId) -> FailureHistory:
        """
        Return the history of an operator, its current try included.

        A try that another one took over from is a failure too: it was lost without a word.
        """
        mine = [a for a in view.attempts if a.operator_id == operator_id]
        failures = sum(a.status in _FAILED and not _is_stop(view, a) for a in mine)
        return cls(failures, sum(_seconds(view, attempt) for attempt in mine))

    @property
    def mean_time_between_failures(self) -> float:
        """Return the expected seconds from one failure to the next."""
        return (_ASSUMED_SECONDS + self.seconds) / (1 + self.failures)


def measured_costs(view: JobView, operator_id: OperatorId) -> tuple[float, ...]:
    """Return what the checkpoints of an operator took that its job remembers, in seconds, oldest first."""
    completed = (
        c for c in view.of_operator(operator_id) if c.completed_at is not None and not c.properties.is_savepoint
    )
    return tuple((c.completed_at - c.triggered_at).total_seconds() for c in completed if c.completed_at is not None)


def _is_stop(view: JobView, attempt: AttemptRecord) -> bool:
    reference = AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch)
    return stopping_savepoint(view, reference) is not None


def _seconds(view: JobView, attempt: AttemptRecord) -> float:
    return (_end(view, attempt) - attempt.registered_at).total_seconds()


def _end(view: JobView, attempt: AttemptRecord) -> datetime:
    if attempt.status is AttemptStatus.FENCED:
        # It ended when the next one came, perhaps long after it was lost.
        return max(_signs_of_life(view, attempt), default=attempt.registered_at)
    return attempt.ended_at or view.read_at


def _signs_of_life(view: JobView, attempt: AttemptRecord) -> Iterable[datetime]:
    mine = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch)
    return (c.completed_at or c.triggered_at for c in mine)


SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 3_600.0
_ASSUMED_COST_SECONDS = 1.0
_WEIGHT_OF_THE_NEWEST = 0.3


def optimal_interval(cost: float, mean_time_between_failures: float) -> float:
    """
    Return the seconds of work between the end of one checkpoint and the begin of the next that lose the least time.

    :param cost: Seconds that a checkpoint takes from the work.
    :param mean_time_between_failures: Seconds.
    :raises InvalidConfigurationError: for a cost below zero, or no time between failures.
    """
    if cost < 0 or mean_time_between_failures <= 0:
        raise InvalidConfigurationError(
            f"Expected a cost of at least 0 s and more than 0 s between failures, found {cost} s and "
            f"{mean_time_between_failures} s."
        )
    if cost >= 2 * mean_time_between_failures:
        return mean_time_between_failures
    ratio = cost / (2 * mean_time_between_failures)
    young = math.sqrt(2 * cost * mean_time_between_failures)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class AutoInterval:
    """
    The interval between checkpoints that fits a job, which changes as costs are measured.

    Newer costs count more. Before the first one a second is assumed.

    :param history: How often the job failed.
    :param costs: Seconds that earlier checkpoints took, oldest first.
    :param shortest: The least seconds.
    :param longest: The most seconds.
    :raises InvalidConfigurationError: unless 0 < shortest <= longest.
    """

    def __init__(
        self,
        history: FailureHistory,
        costs: Iterable[float] = (),
        *,
        shortest: float = SHORTEST_SECONDS,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        if not 0 < shortest <= longest:
            raise InvalidConfigurationError(f"Expected 0 < shortest <= longest, found {shortest} and {longest}.")
        self._history = history
        self._shortest = shortest
        self._longest = longest
        self._cost: float | None = None
        for cost in costs:
            self.observe(cost)

    def observe(self, cost: float) -> None:
        """Learn from what a checkpoint took, in seconds."""
        weight = _WEIGHT_OF_THE_NEWEST
        self._cost = cost if self._cost is None else weight * cost + (1 - weight) * self._cost

    @property
    def seconds(self) -> float:
        """Return how much time should lie after a completed checkpoint before the next."""
        return min(max(self._optimum, self._shortest), self._longest)

    @property
    def reason(self) -> str:
        """Say why the interval is what it is."""
        return f"every {readable_seconds(self.seconds)}{self._bound}: {self._cost_shown}, {self._failures_shown}"

    @property
    def _optimum(self) -> float:
        cost = _ASSUMED_COST_SECONDS if self._cost is None else self._cost
        return optimal_interval(cost, self._history.mean_time_between_failures)

    @property
    def _bound(self) -> str:
        if self._shortest <= self._optimum <= self._longest:
            return ""
        return f" ({'the shortest' if self._optimum < self._shortest else 'the longest'} there is)"

    @property
    def _cost_shown(self) -> str:
        if self._cost is None:
            return f"a checkpoint is assumed to cost {readable_seconds(_ASSUMED_COST_SECONDS)}"
        return f"a checkpoint costs {readable_seconds(self._cost)}"

    @property
    def _failures_shown(self) -> str:
        failures, seconds = self._history.failures, self._history.seconds
        if not failures and seconds < 1:
            return "one failure a day is assumed"
        times = {0: "did not fail", 1: "failed once"}.get(failures, f"failed {failures} times")
        return f"this job {times} in {readable_seconds(seconds)}"


log = logging.getLogger(__name__)
_TELLING = 1.5
"""By such a factor an interval has to change to be told again."""


class Pace:
    """
    Tells whether the pause after the last completed checkpoint is over.

    The last one of a loop and those that are asked for do not wait for it.

    :param checkpoint_interval: How much time lies between two checkpoints, also before the first; a bare number is
        milliseconds, ``None`` is no limit, and an :class:`AutoInterval` finds it by itself.
    :param min_pause: How much time lies after one at least; nothing before the first.
    :param monotonic: The clock for durations, in seconds.
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
        config.min_pause_between_checkpoints = min_pause
        self._between = (config.effective_interval or config.effective_min_pause).total_seconds()
        self._monotonic = monotonic
        self._begin = monotonic()
        self._wait = (config.checkpoint_interval or timedelta(0)).total_seconds()
        self._told: float | None = None
        if self._auto is not None:
            self._wait = self._auto.seconds
            self._tell(self._auto)

    def allows(self) -> bool:
        """Tell whether a checkpoint may be taken by itself."""
        return self._monotonic() - self._begin >= self._wait

    def completed(self, cost_seconds: float | None = None) -> None:
        """
        Begin anew after a checkpoint was completed.

        :param cost_seconds: What it took, as far as that is known.
        """
        self._begin = self._monotonic()
        self._wait = self._between
        if self._auto is not None:
            if cost_seconds is not None:
                self._auto.observe(cost_seconds)
            self._wait = max(self._between, self._auto.seconds)
            self._tell(self._auto)

    def observed(self, cost_seconds: float) -> None:
        """
        Learn what the last checkpoint took, while the time after it is running.

        :param cost_seconds: What it took.
        """
        if self._auto is not None:
            self._auto.observe(cost_seconds)
            self._wait = max(self._between, self._auto.seconds)
            self._tell(self._auto)

    def _tell(self, auto: AutoInterval) -> None:
        if self._told is None or not self._told / _TELLING < auto.seconds < self._told * _TELLING:
            self._told = auto.seconds
            log.info("Checkpoints are taken %s.", auto.reason)


def pace_of(
    attempt: StageAttempt,
    checkpoint_interval: timedelta | str | int | None,
    min_pause: timedelta | str | int | None,
    monotonic: Callable[[], float],
) -> Pace:
    """
    Return how soon after a checkpoint of an attempt the next one may be taken by itself.

    :param checkpoint_interval: As :class:`Pace` takes it, or ``auto``.
    :param min_pause: As :class:`Pace` takes it.
    :param monotonic: The clock for durations, in seconds.
    :raises InvalidConfigurationError: for a duration out of range.
    """
    is_auto = checkpoint_interval == AUTO
    return Pace(_auto_interval(attempt) if is_auto else checkpoint_interval, min_pause, monotonic)


def require_pace(checkpoint_interval: timedelta | str | int | None, min_pause: timedelta | str | int | None) -> None:
    """
    Refuse what is no pace, before anything is registered.

    :raises InvalidConfigurationError: for a duration out of range.
    """
    Pace(None if checkpoint_interval == AUTO else checkpoint_interval, min_pause, time.monotonic)


def _auto_interval(attempt: StageAttempt) -> AutoInterval:
    view, operator_id = attempt.job_view(), attempt.grant.attempt.operator_id
    return AutoInterval(FailureHistory.of(view, operator_id), measured_costs(view, operator_id))


class Rhythm:
    """
    Says after each item whether a checkpoint is to be taken now.

    :param every: After so many items.
    :param every_seconds: Also when the last one is older than this.
    :param costs: May put a checkpoint off; it is then taken after the first item for which there is budget again.
    :param pace: May put one off too; it is then taken after the first item behind the pause.
    :param monotonic: The clock for durations, in seconds.
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
        """Count one more item and tell whether a checkpoint is to be taken after it."""
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
            self._put_off()
        return False

    def taken(self) -> None:
        """Begin anew after a checkpoint."""
        self._is_late = False
        self._items_since_due = 0
        self._begin()

    def _begin(self) -> None:
        self.unsaved = 0
        """How many items no checkpoint of this loop holds yet."""
        self._last = self._monotonic()

    def _is_due(self) -> bool:
        is_old = self._every_seconds is not None and self._monotonic() - self._last >= self._every_seconds
        return self._items_since_due >= self._every or is_old

    def _put_off(self) -> None:
        self._costs.put_off += 1
        self._is_late = True
        self._items_since_due = 0
        self._last = self._monotonic()


def require_every(every: object) -> None:
    """
    Refuse a rhythm below one.

    :raises InvalidConfigurationError: for anything but a whole number of at least 1.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise InvalidConfigurationError(f"Expected every to be at least 1, found {every!r}.")
