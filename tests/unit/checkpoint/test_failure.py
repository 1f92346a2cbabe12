"""Reasons of failed checkpoints, the exception that carries one, and how many failures a job bears."""

from __future__ import annotations

import copy
import pickle
from threading import Thread

import pytest

from airflow_provider_statecheck.checkpoint import failure
from airflow_provider_statecheck.checkpoint.failure import (
    UNKNOWN_CHECKPOINT_ID,
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CountedFailure,
    root_cause,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, InvalidConfigurationError, StorageError

CHECKPOINT = CheckpointProperties.for_checkpoint()
SAVEPOINT = CheckpointProperties.for_savepoint()
STOP = CheckpointProperties.for_sync_savepoint(terminate=True)
EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED
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


class Job:
    """A job with a failure manager; it notes what happens, in order."""

    def __init__(self, tolerable: int = 0) -> None:
        self.events: list[tuple[object, ...]] = []
        self.manager = CheckpointFailureManager(tolerable, self, self)

    def fail_job(self, cause: Exception) -> None:
        self.events.append(("fail_job", cause))

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        self.events.append(("fail_task", cause, attempt_id))

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        self.events.append(("failed", checkpoint_id))

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        self.events.append(("failed without id",))

    def fails(self, checkpoint_id: int = UNKNOWN_CHECKPOINT_ID, reason=EXPIRED, properties=CHECKPOINT, **facts) -> bool:
        """Let a checkpoint fail and tell whether the job fails with it."""
        before = len(self.failures)
        self.manager.handle_checkpoint_exception(
            CheckpointException(reason), properties=properties, checkpoint_id=checkpoint_id, **facts
        )
        return len(self.failures) > before

    @property
    def failures(self) -> list[tuple[object, ...]]:
        return [event for event in self.events if event[0] in ("fail_job", "fail_task")]

    @property
    def cause(self) -> CheckpointDeclinedError:
        cause = self.failures[-1][1]
        assert isinstance(cause, CheckpointDeclinedError)
        return cause


def test_a_negative_number_of_tolerable_failures_is_refused():
    with pytest.raises(InvalidConfigurationError, match="tolerable_failed_checkpoints to be 0 or more, found -1"):
        Job(-1)


def test_statistics_hear_of_a_failure_before_the_job_fails():
    job = Job()
    job.fails(3)
    job.fails()
    assert [event[0] for event in job.events] == ["failed", "fail_job", "failed without id", "fail_job"]
    assert job.events[0] == ("failed", 3)


def test_statistics_hear_of_failures_that_do_not_count():
    job = Job(UNLIMITED_TOLERABLE_FAILURES)
    job.fails(1)
    job.fails(2, properties=SAVEPOINT)
    job.fails(3, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    assert job.events == [("failed", 1), ("failed", 2), ("failed", 3)]


def test_a_manager_without_statistics_counts_as_well():
    job = Job()
    job.manager = CheckpointFailureManager(0, job)
    assert job.fails(1)


@pytest.mark.parametrize("reason", CheckpointFailureReason)
def test_only_the_failures_of_a_job_that_lost_a_checkpoint_count(reason):
    is_counted = not reason.is_tolerated_silently
    assert Job().fails(1, reason) == is_counted
    assert Job().fails(1, reason, attempt_id="1") == is_counted


@pytest.mark.parametrize(
    ("tolerable", "ids", "failing"),
    [
        pytest.param(2, (1, 2, 3), [3], id="as many as tolerated do not fail the job"),
        pytest.param(1, (1, 2, 3, 4), [2, 4], id="counting begins anew when the job was failed"),
        pytest.param(1, (1, 1, 1, 2), [2], id="a checkpoint counts once however often it fails"),
        pytest.param(0, (1, 1, 2), [1, 2], id="a checkpoint that failed the job does not count again"),
    ],
)
def test_more_checkpoints_in_a_row_than_tolerated_fail_the_job(tolerable, ids, failing):
    job = Job(tolerable)
    assert [n for n in ids if job.fails(n)] == failing


def test_an_unlimited_number_of_failures_never_fails_the_job(monkeypatch):
    """The number that stands for any number is made small, so that reaching it would be seen."""
    monkeypatch.setattr(failure, "UNLIMITED_TOLERABLE_FAILURES", 3)
    job = Job(3)
    assert not any(job.fails(n) for n in range(100))


def test_a_failure_without_id_always_counts():
    job = Job(1)
    job.manager.handle_checkpoint_success(100)
    assert [job.fails() for _ in range(4)] == [False, True, False, True]


def test_a_completed_checkpoint_starts_the_counting_anew():
    job = Job(1)
    job.fails(1)
    job.manager.handle_checkpoint_success(2)
    assert [job.fails(n) for n in (3, 4)] == [False, True]


def test_a_late_completion_of_an_older_checkpoint_does_not_start_the_counting_anew():
    job = Job(1)
    job.manager.handle_checkpoint_success(5)
    job.fails(6)
    job.manager.handle_checkpoint_success(4)
    job.manager.handle_checkpoint_success(5)
    assert job.fails(7)


def test_the_failure_of_a_checkpoint_not_newer_than_a_completed_one_is_ignored():
    job = Job(0)
    job.manager.handle_checkpoint_success(5)
    assert [job.fails(n) for n in (3, 5, 6)] == [False, False, True]


def test_a_failure_counted_before_an_older_checkpoint_completed_does_not_count_twice():
    job = Job(0)
    job.manager = CheckpointFailureManager(1, job)
    job.fails(6)
    job.manager.handle_checkpoint_success(5)
    assert [job.fails(n) for n in (6, 7, 8)] == [False, False, True]


def test_a_savepoint_that_fails_in_the_coordinator_never_counts():
    job = Job(0)
    assert not job.fails(1, properties=SAVEPOINT)
    assert not job.fails(2, properties=STOP)
    assert not job.fails(3, CheckpointFailureReason.IO_EXCEPTION, SAVEPOINT, attempt_id="1")
    assert job.fails(4)


def test_a_plain_savepoint_that_fails_in_a_task_counts():
    job = Job(1)
    assert not job.fails(1, properties=SAVEPOINT, attempt_id="7")
    assert job.fails(2, properties=SAVEPOINT, attempt_id="7")


def test_a_failure_of_a_task_fails_the_job_because_of_that_attempt():
    job = Job(0)
    job.fails(1, attempt_id="7")
    kind, _, attempt_id = job.failures[0]
    assert (kind, attempt_id) == ("fail_task", "7")


def test_a_failure_before_any_task_saw_the_checkpoint_is_the_coordinators_whoever_reports_it():
    job = Job(0)
    job.fails(1, CheckpointFailureReason.IO_EXCEPTION, attempt_id="7")
    assert job.failures[0][0] == "fail_job"


@pytest.mark.parametrize("reason", [EXPIRED, CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY])
def test_a_stop_savepoint_that_fails_in_a_task_fails_the_job_at_once(reason):
    job = Job(100)
    error = CheckpointException(reason)
    job.manager.handle_checkpoint_exception(error, properties=STOP, checkpoint_id=1, attempt_id="7")
    assert job.failures == [("fail_job", error)]


def test_the_error_beyond_the_threshold_lists_the_counted_failures():
    job = Job(1)
    job.fails(3, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    job.manager.handle_checkpoint_exception(
        CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, OSError("disk full")),
        properties=CHECKPOINT,
        checkpoint_id=4,
        attempt_id="7",
        operator="sink",
    )
    last = CheckpointException(CheckpointFailureReason.IO_EXCEPTION, StorageError("no bucket"))
    job.manager.handle_checkpoint_exception(last, properties=CHECKPOINT)
    assert job.cause.failures == (
        CountedFailure(
            checkpoint_id=4,
            reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
            root_cause="OSError: disk full",
            operator="sink",
        ),
        CountedFailure(
            checkpoint_id=-1, reason=CheckpointFailureReason.IO_EXCEPTION, root_cause="StorageError: no bucket"
        ),
    )
    assert str(job.cause) == (
        "Exceeded tolerable failure threshold: 2 checkpoints in a row failed, tolerable_failed_checkpoints is 1. The "
        "failed checkpoints: 4 of operator 'sink' (checkpoint_declined): OSError: disk full; one without id "
        "(io_exception): StorageError: no bucket"
    )
    assert job.cause.__cause__ is last


def test_the_error_beyond_the_threshold_survives_pickling():
    job = Job(0)
    job.fails(1)
    copy = pickle.loads(pickle.dumps(job.cause))
    assert (str(copy), copy.failures, copy.reason) == (str(job.cause), job.cause.failures, EXPIRED)


def test_the_root_cause_is_the_innermost_error_that_says_what_to_do():
    storage = StorageError("create the bucket")
    storage.__cause__ = OSError("404")
    assert root_cause(CheckpointException(EXPIRED, storage)) == "StorageError: create the bucket"
    assert root_cause(CheckpointException(EXPIRED, OSError("404"))) == "OSError: 404"
    assert root_cause(CheckpointException(EXPIRED)) == "CheckpointException: Checkpoint expired"


def test_errors_that_cause_each_other_have_a_root_too():
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert root_cause(first) == "OSError: second"


def test_a_reason_that_is_none_is_a_programming_error():
    error = CheckpointException(EXPIRED)
    vars(error)["reason"] = "full_moon"
    with pytest.raises(ValueError, match="full_moon"):
        Job().manager.handle_checkpoint_exception(error, properties=CHECKPOINT, checkpoint_id=1)


def test_the_job_may_be_failed_by_raising_and_the_counting_begins_anew():
    class Raising(Job):
        def fail_job(self, cause: Exception) -> None:
            raise cause

    job = Raising(1)
    job.fails(1)
    with pytest.raises(CheckpointDeclinedError, match="2 checkpoints in a row"):
        job.fails(2)
    assert not job.fails(3)


def test_a_callback_may_use_the_manager_for_no_lock_is_held():
    class Calling(Job):
        def fail_job(self, cause: Exception) -> None:
            other = Thread(target=self.manager.handle_checkpoint_success, args=(9,), daemon=True)
            other.start()
            other.join(10)
            self.events.append(("fail_job", other.is_alive()))

    job = Calling(0)
    job.fails(1)
    assert job.failures == [("fail_job", False)]
