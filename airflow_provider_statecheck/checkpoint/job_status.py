"""How a job ended: Flink's ``JobStatus``, and which of Airflow's states means which."""

from __future__ import annotations

from enum import StrEnum

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class JobStatus(StrEnum):
    """How a job ended, or that it did not."""

    FINISHED = "finished"
    """Its run succeeded."""
    CANCELED = "canceled"
    """A person ended it: the run was marked failed, cleared away or deleted."""
    FAILED = "failed"
    """Its run failed by an error."""
    SUSPENDED = "suspended"
    """It goes on later: a worker or scheduler stopped, a task is deferred."""

    @property
    def is_globally_terminal(self) -> bool:
        """Tell whether the job never goes on."""
        return self is not JobStatus.SUSPENDED


_OF_STATE = {None: JobStatus.CANCELED, "success": JobStatus.FINISHED, "failed": JobStatus.FAILED}
_GOES_ON = frozenset(
    {
        "scheduled",
        "queued",
        "running",
        "restarting",
        "deferred",
        "awaiting_input",
        "up_for_retry",
        "up_for_reschedule",
    }
)


def job_status_of(state: str | None, *, is_by_a_person: bool = False) -> JobStatus:
    """
    Return what a state of Airflow means for the checkpoints of the job.

    :param state: State of the Dag run, or of a task that waits; ``None`` for a run whose row is gone.
    :param is_by_a_person: Whether somebody marked the run as failed, in contrast to an error of a task.
    :raises InvalidConfigurationError: for any other state, because no bytes may go for a state that nobody knows.
    """
    if state in _GOES_ON:
        return JobStatus.SUSPENDED
    if state not in _OF_STATE:
        known = ", ".join(sorted({*filter(None, _OF_STATE), *_GOES_ON}))
        raise InvalidConfigurationError(
            f"Expected a state of a Dag run or of a waiting task ({known}), found {state!r}; treat the job as not ended.",
            key="state",
            value=state,
        )
    return JobStatus.CANCELED if state == "failed" and is_by_a_person else _OF_STATE[state]
