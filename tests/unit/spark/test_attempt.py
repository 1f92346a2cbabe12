"""Attempts of a stage and their failed checkpoints."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointNotFoundError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.maintenance.job_maintenance import RetireJob
from airflow_provider_statecheck.spark.attempt import FailedCheckpoints
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.maintenance_contract import AIRFLOW, BY_RUN
from tests.messages import make_owner
from tests.unit.written_stage import JOB, WrittenStage

ENDED = CheckpointFailureReason.ATTEMPT_ENDED
OWNER_IN_AIRFLOW = make_owner(airflow=(("dag_id", "dag"), ("task_id", "task")))
OWNER_OF_SCRIPT = make_owner(logical_task="script/sales")
LOG_OF_ATTEMPT = f"of job {JOB!r}, operator 'aggregate', attempt"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of checkpoints, without their sizes."""
    lines = (r.getMessage() for r in caplog.records)
    return [line.partition(" s; ")[0] for line in lines if line.startswith(("Checkpoint", "A checkpoint"))]


def remove(stage: WrittenStage) -> None:
    job_id, maintenance = job_id_of(JOB), stage.maintenance
    maintenance.retire(RetireJob(job_id=job_id, is_named=True))
    ids = tuple(c.checkpoint_id for c in maintenance.describe(job_id).checkpoints)
    maintenance.confirm_discards(job_id, ids)
    assert maintenance.remove(RetireJob(job_id=job_id, is_named=True)) == ()


@pytest.mark.parametrize("checkpoints", [0, 3], ids=["before the sweep", "before the discards are confirmed"])
def test_a_job_that_is_removed_at_its_end_does_not_fail_the_task(stage, monkeypatch, checkpoints):
    attempt = stage.attempt()
    for i in range(checkpoints):
        stage.take(attempt, stage.snapshot(attempt, f"step {i}"))
        del attempt.cleaner.discard
    finish = stage.coordinator.finish

    def finish_and_remove(message: Any) -> Any:
        effects = finish(message)
        remove(stage)
        return effects

    monkeypatch.setattr(stage.coordinator, "finish", finish_and_remove)
    attempt.finish(AttemptStatus.FINISHED)
    with pytest.raises(CheckpointNotFoundError):
        stage.maintenance.describe(job_id_of(JOB))


def test_the_log_has_one_line_for_each_checkpoint(stage, caplog):
    with caplog.at_level(logging.INFO):
        attempt = stage.attempt()
        for i in range(3):
            attempt.take_checkpoint(CheckpointContent(state={"n": i}))
    assert said(caplog) == [f"Checkpoint {n} {LOG_OF_ATTEMPT} 1: completed in 0.000" for n in (1, 2, 3)]


def test_the_log_has_one_line_for_a_checkpoint_that_fails(stage, monkeypatch, caplog):
    attempt = stage.attempt()

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageError("The disk is full.")

    with caplog.at_level(logging.INFO), monkeypatch.context() as patching:
        patching.setattr(CheckpointStorage, "write_bytes", refuse)
        assert attempt.take_checkpoint(CheckpointContent()) is None
    assert said(caplog) == ["Checkpoint 1 failed; the stage continues without it: The disk is full."]


def test_the_log_says_what_became_of_the_checkpoint_under_which_an_attempt_was_killed(stage, caplog):
    killed = stage.attempt()
    killed.take_checkpoint(CheckpointContent())
    assert killed.begin_checkpoint(None) is not None
    with caplog.at_level(logging.INFO):
        stage.attempt().restore()
    assert [line for line in said(caplog) if line.startswith("Checkpoint 2")] == [
        f"Checkpoint 2 {LOG_OF_ATTEMPT} 1: not completed ({ENDED.message}); files deleted"
    ]


@pytest.mark.parametrize(
    ("owner", "lines"),
    [
        (
            OWNER_OF_SCRIPT,
            ["Job 'sales' retains no checkpoint: none was completed; the next try starts from the beginning."],
        ),
        (OWNER_IN_AIRFLOW, []),
    ],
    ids=["script", "task"],
)
def test_what_is_kept_is_said_by_a_script_itself_and_for_a_task_by_airflows_listener(stage, caplog, owner, lines):
    with caplog.at_level(logging.ERROR):
        stage.attempt(owner=owner).fail(RuntimeError("planned"))
    assert [r.getMessage() for r in caplog.records] == lines


def test_the_last_words_before_a_restore_name_the_checkpoint_that_the_next_try_restores(stage):
    stage.run(checkpoints=1)
    retry = stage.attempt()
    assert "retains checkpoint 1" in retry.kept()
    retry.fail(KeyboardInterrupt())
    assert "retains checkpoint 1" in retry.kept()


def test_the_last_words_name_a_checkpoint_that_cannot_be_read_and_promise_no_resumption(stage):
    stage.run(checkpoints=1)
    [metadata] = [name for name in stage.files() if name.endswith("/_metadata")]
    stage.storage.write_bytes(f"{stage.storage.base_uri}/{metadata}", b"damaged", overwrite=True)
    retry = stage.attempt()
    with pytest.raises(NoRestorableCheckpointError):
        retry.restore()
    assert "retains checkpoint 1, which could not be read; the next try reads it again." in retry.kept()


def test_the_last_words_before_the_restore_of_a_savepoint_name_the_savepoint(stage):
    earlier = stage.run("other", checkpoints=1)
    pointer = earlier.latest.location
    heir = stage.attempt(restore_from=stage.source_at(pointer))
    assert heir.kept().endswith(
        f"retains no checkpoint of its own: none was completed; the next try starts from {pointer}."
    )


def test_the_last_words_of_a_replaced_attempt_promise_no_retry(stage, caplog):
    replaced = stage.attempt(owner=OWNER_OF_SCRIPT)
    replaced.take_checkpoint(CheckpointContent())
    stage.attempt(owner=OWNER_OF_SCRIPT)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(StaleAttemptError) as stale:
            replaced.take_checkpoint(CheckpointContent())
        replaced.fail(stale.value)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "Attempt 2 of job 'sales' has replaced attempt 1, whose new checkpoints are rejected (fenced)."
    ]


def last_words(stage: WrittenStage, caplog: pytest.LogCaptureFixture, job: str, **changes: Any) -> str:
    """Return the last line in the log of an attempt that takes a checkpoint and finishes."""
    attempt = stage.attempt(job, owner=make_owner(airflow=AIRFLOW), **changes)
    stage.take(attempt, stage.snapshot(attempt, "step"))
    with caplog.at_level(logging.INFO):
        attempt.finish(AttemptStatus.FINISHED)
    return caplog.messages[-1]


def test_the_last_line_of_a_run_that_leaves_bytes_says_what_deletes_them(stage, caplog):
    assert last_words(stage, caplog, BY_RUN) == (
        f"Job {BY_RUN!r} leaves checkpoint 1 below {stage.storage.base_uri}. 'airflow statecheck gc --all' or the Dag "
        f"statecheck_maintenance deletes unneeded files after the end of the run."
    )


def test_what_a_test_run_leaves_goes_with_its_job(stage, caplog):
    assert "'airflow statecheck prune --test-jobs'" in last_words(stage, caplog, f"test/{BY_RUN}")


def test_a_job_with_a_name_of_its_own_keeps_its_state_and_says_nothing(stage, caplog):
    assert "leaves" not in last_words(stage, caplog, JOB)


def test_what_could_not_be_deleted_is_named_with_what_deletes_it(stage, caplog):
    stage.run(checkpoints=2)
    attempt = stage.attempt()
    attempt.cleaner.discard = lambda *_: ()
    with caplog.at_level(logging.INFO):
        attempt.finish(AttemptStatus.FINISHED)
    assert caplog.messages[-1].startswith(f"Job {JOB!r} leaves checkpoint 1 below")
    assert "the end of the run" not in caplog.messages[-1]


LATE = CheckpointDeclinedError("too late", reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)


def test_one_too_many_fails_the_stage_and_lists_the_failures():
    failures = FailedCheckpoints(1)
    failures.failed(LATE, 12)
    with pytest.raises(CheckpointDeclinedError, match="2 checkpoints in a row failed") as raised:
        failures.failed(StorageError("disk full"))
    assert [(f.checkpoint_id, f.reason, f.root_cause) for f in raised.value.failures] == [
        (12, CheckpointFailureReason.CHECKPOINT_EXPIRED, "CheckpointDeclinedError: too late"),
        (-1, CheckpointFailureReason.IO_EXCEPTION, "StorageError: disk full"),
    ]


def test_a_checkpoint_that_was_lost_for_whatever_reason_counts():
    subsumed = CheckpointDeclinedError("gone", reason=CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    with pytest.raises(CheckpointDeclinedError, match="Exceeded tolerable failure threshold"):
        FailedCheckpoints(0).failed(subsumed)


def test_a_number_below_minus_one_is_refused():
    with pytest.raises(InvalidConfigurationError, match="tolerable_failed_checkpoints"):
        FailedCheckpoints(-2)
