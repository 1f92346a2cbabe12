"""
How much time should lie between two checkpoints, from what one costs and how often the job fails.

Too many checkpoints cost time by themselves, too few cost the work that a failure throws away. Young gave the interval
that loses least as a first approximation, the square root of twice the cost times the mean time between failures (J. W.
Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9), 1974,
doi:10.1145/361147.361115). Daly's higher-order form stays right where a checkpoint costs much of that time (J. T. Daly,
A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22(3),
2006, doi:10.1016/j.future.2004.11.016).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.failure_history import FailureHistory
from airflow_provider_statecheck.spark.readable import readable_seconds

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
