"""The pace of an attempt: as it is configured, or found by what the job remembers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.interval_setting import AUTO
from airflow_provider_statecheck.spark.costs.failure_history import FailureHistory, measured_costs
from airflow_provider_statecheck.spark.costs.pace import Pace
from airflow_provider_statecheck.spark.costs.young_daly import AutoInterval

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.attempt import StageAttempt


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
