"""Reasons of failed checkpoints, and the exception that carries one."""

from __future__ import annotations

import copy
import pickle

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason

PRE_FLIGHT_AND_COUNTED = {
    "PERIODIC_SCHEDULER_SHUTDOWN": "yn",
    "TOO_MANY_CHECKPOINT_REQUESTS": "yn",
    "TOO_MANY_CONCURRENT_CHECKPOINTS": "yn",
    "MINIMUM_TIME_BETWEEN_CHECKPOINTS": "yn",
    "NOT_ALL_REQUIRED_TASKS_RUNNING": "yn",
    "IO_EXCEPTION": "yy",
    "TRIGGER_CHECKPOINT_FAILURE": "nn",
    "CHECKPOINT_EXPIRED": "ny",
    "CHECKPOINT_DECLINED_TIME_OUT": "ny",
    "CHECKPOINT_SUBSUMED": "nn",
    "CHECKPOINT_DECLINED": "ny",
    "CHECKPOINT_DECLINED_TASK_NOT_READY": "nn",
    "CHECKPOINT_DECLINED_TASK_CLOSING": "nn",
    "CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING": "nn",
    "CHECKPOINT_DECLINED_SUBSUMED": "nn",
    "CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED": "nn",
    "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER": "nn",
    "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM": "nn",
    "CHECKPOINT_ASYNC_EXCEPTION": "ny",
    "TASK_CHECKPOINT_FAILURE": "nn",
    "TASK_FAILURE_DURING_CHECKPOINT": "nn",
    "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE": "nn",
    "FINALIZE_CHECKPOINT_FAILURE": "ny",
    "CHECKPOINT_COORDINATOR_SHUTDOWN": "nn",
    "CHECKPOINT_COORDINATOR_SUSPEND": "nn",
    "JOB_FAILURE": "nn",
    "JOB_FAILOVER_REGION": "nn",
    "BLOCKING_OUTPUT_EXIST": "yn",
    "ATTEMPT_ENDED": "nn",
    "UNSPECIFIED": "nn",
}
EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


def test_the_table_of_reasons_is_complete() -> None:
    assert {each.name for each in CheckpointFailureReason} == set(PRE_FLIGHT_AND_COUNTED)


@pytest.mark.parametrize(("name", "flags"), PRE_FLIGHT_AND_COUNTED.items())
def test_a_reason_is_pre_flight_and_counted_as_the_table_says(name: str, flags: str) -> None:
    reason = CheckpointFailureReason[name]
    assert (reason.is_pre_flight, not reason.is_tolerated_silently) == (flags[0] == "y", flags[1] == "y")


def test_each_reason_has_a_text_of_its_own() -> None:
    texts = [each.message for each in CheckpointFailureReason]
    assert len(set(texts)) == len(texts)
    assert all(text[0].isupper() and "_" not in text for text in texts)
    assert EXPIRED.message == "Checkpoint expired"
    assert CheckpointFailureReason.IO_EXCEPTION.message == "An input or output operation of the coordinator failed"


CAUSE = OSError("disk full")


@pytest.mark.parametrize(
    ("said", "cause", "text", "reason"),
    [
        (EXPIRED, None, "Checkpoint expired", EXPIRED),
        (EXPIRED, CAUSE, "Checkpoint expired: disk full", EXPIRED),
        ("No room is left.", None, "No room is left.", CheckpointFailureReason.UNSPECIFIED),
        ("Nothing was written", CAUSE, "Nothing was written: disk full", CheckpointFailureReason.UNSPECIFIED),
        ("checkpoint_expired", None, "checkpoint_expired", CheckpointFailureReason.UNSPECIFIED),
    ],
)
def test_an_exception_has_a_reason_or_a_message_and_may_have_a_cause(
    said: CheckpointFailureReason | str, cause: Exception | None, text: str, reason: CheckpointFailureReason
) -> None:
    error = CheckpointException(said, cause)
    assert (str(error), error.reason, error.__cause__) == (text, reason, cause)


@pytest.mark.parametrize("send", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"])
@pytest.mark.parametrize("reason", [*CheckpointFailureReason, "a message"])
def test_reason_message_and_facts_survive_the_way(send, reason) -> None:
    error = CheckpointException(reason, OSError("disk full"), checkpoint_id=7)
    arrived = send(error)
    assert type(arrived) is CheckpointException
    assert (str(arrived), arrived.reason, arrived.checkpoint_id) == (str(error), error.reason, 7)
