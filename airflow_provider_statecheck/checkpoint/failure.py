"""
Failure reasons of checkpoints: Flink's ``CheckpointFailureReason`` and ``CheckpointException``.

Failure messages are texts that every database can store.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.exceptions import CheckpointError


class CheckpointFailureReason(StrEnum):
    """Reason of an aborted or rejected checkpoint."""

    PERIODIC_SCHEDULER_SHUTDOWN = "periodic_scheduler_shutdown"
    TOO_MANY_CHECKPOINT_REQUESTS = "too_many_checkpoint_requests"
    TOO_MANY_CONCURRENT_CHECKPOINTS = "too_many_concurrent_checkpoints"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "minimum_time_between_checkpoints"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not_all_required_tasks_running"
    IO_EXCEPTION = "io_exception"
    BLOCKING_OUTPUT_EXIST = "blocking_output_exist"
    TRIGGER_CHECKPOINT_FAILURE = "trigger_checkpoint_failure"
    CHECKPOINT_EXPIRED = "checkpoint_expired"
    CHECKPOINT_SUBSUMED = "checkpoint_subsumed"
    CHECKPOINT_DECLINED = "checkpoint_declined"
    CHECKPOINT_DECLINED_TIME_OUT = "checkpoint_declined_time_out"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "checkpoint_declined_task_not_ready"
    CHECKPOINT_DECLINED_TASK_CLOSING = "checkpoint_declined_task_closing"
    CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING = "checkpoint_declined_task_not_checkpointing"
    CHECKPOINT_DECLINED_SUBSUMED = "checkpoint_declined_subsumed"
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = "checkpoint_declined_alignment_limit_exceeded"
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "checkpoint_declined_on_cancellation_barrier"
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "checkpoint_declined_input_end_of_stream"
    CHECKPOINT_ASYNC_EXCEPTION = "checkpoint_async_exception"
    TASK_CHECKPOINT_FAILURE = "task_checkpoint_failure"
    TASK_FAILURE_DURING_CHECKPOINT = "task_failure_during_checkpoint"
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "unknown_task_checkpoint_notification_failure"
    FINALIZE_CHECKPOINT_FAILURE = "finalize_checkpoint_failure"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "checkpoint_coordinator_shutdown"
    CHECKPOINT_COORDINATOR_SUSPEND = "checkpoint_coordinator_suspend"
    JOB_FAILURE = "job_failure"
    JOB_FAILOVER_REGION = "job_failover_region"
    ATTEMPT_ENDED = "attempt_ended"
    """The attempt was killed, replaced or closed before the checkpoint completed; this does not count as a failure."""
    UNSPECIFIED = "unspecified"
    """Reason of an exception that has only a message."""

    @property
    def is_pre_flight(self) -> bool:
        """Return whether the failure occurred before the checkpoint was triggered in any task."""
        return self in _PRE_FLIGHT

    @property
    def is_tolerated_silently(self) -> bool:
        """Return whether the failure does not count towards the tolerable number of failures."""
        return self not in _COUNTED

    @property
    def message(self) -> str:
        """Return the description of the reason."""
        return _TEXTS.get(self) or self.value.replace("_", " ").capitalize()


_TEXTS = {
    CheckpointFailureReason.IO_EXCEPTION: "An input or output operation of the coordinator failed",
    CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS: "Too many checkpoint requests are queued",
    CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS: "The minimum time between checkpoints has not passed",
    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING: "Not all required tasks are running",
    CheckpointFailureReason.BLOCKING_OUTPUT_EXIST: "A blocking output exists",
    CheckpointFailureReason.ATTEMPT_ENDED: "The attempt ended before the checkpoint was complete",
}
_PRE_FLIGHT = frozenset(
    {
        CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
        CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
        CheckpointFailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS,
        CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.BLOCKING_OUTPUT_EXIST,
    }
)
_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)


class CheckpointException(CheckpointError):
    """
    A checkpoint failed or was rejected.

    :param reason: Failure reason, or a message if no reason applies.
    :param cause: Exception that caused the failure.
    """

    code = "checkpoint_failed"

    def __init__(
        self, reason: CheckpointFailureReason | str, cause: BaseException | None = None, **attributes: Any
    ) -> None:
        text = reason.message if isinstance(reason, CheckpointFailureReason) else reason
        super().__init__(text if cause is None else f"{text}: {cause}", **attributes)
        is_text = not isinstance(reason, CheckpointFailureReason)
        self.reason = CheckpointFailureReason.UNSPECIFIED if is_text else CheckpointFailureReason(reason)
        self.__cause__ = cause


LONGEST_TEXT = 2000
"""Maximum number of characters of an error text in a message."""


def storable_text(text: str) -> str:
    """
    Truncate an error text and replace the characters that a database cannot store.

    An error may quote data that contains U+0000 or a lone surrogate, and the API limits the size of a message.
    """
    return text[:LONGEST_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def truncated(text: str, max_bytes: int) -> str:
    """Truncate a text to its maximum size in a row; an ellipsis replaces the rest."""
    if json_size(text) <= max_bytes:
        return text
    prefix = text[:max_bytes]
    while json_size(f"{prefix}…") > max_bytes:
        prefix = prefix[: len(prefix) * 9 // 10]
    return f"{prefix}…"


def json_size(value: Any) -> int:
    """Return the size of a value in a row as JSON, in which a character takes up to twelve bytes."""
    return len(json.dumps(value))
