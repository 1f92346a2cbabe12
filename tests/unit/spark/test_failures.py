"""How many failed checkpoints a stage bears."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.spark.attempt import FailedCheckpoints

LATE = CheckpointDeclinedError("too late", reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)


def test_any_number_is_borne_by_default_with_a_warning_each(caplog):
    failures = FailedCheckpoints()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            failures.failed(StorageError("disk full"))
        failures.failed(LATE, 12)
    assert [r.getMessage() for r in caplog.records] == [
        *["A checkpoint failed; the stage continues without it: disk full"] * 5,
        "Checkpoint 12 failed; the stage continues without it: too late",
    ]


def test_one_too_many_fails_the_stage_and_lists_the_failures():
    failures = FailedCheckpoints(1)
    failures.failed(LATE, 12)
    with pytest.raises(CheckpointDeclinedError, match="2 checkpoints in a row failed") as raised:
        failures.failed(StorageError("disk full"))
    assert [(f.checkpoint_id, f.reason, f.root_cause) for f in raised.value.failures] == [
        (12, CheckpointFailureReason.CHECKPOINT_EXPIRED, "CheckpointDeclinedError: too late"),
        (-1, CheckpointFailureReason.IO_EXCEPTION, "StorageError: disk full"),
    ]


def test_a_completed_checkpoint_starts_the_counting_anew():
    failures = FailedCheckpoints(1)
    for completed in (1, 2, 3):
        failures.failed(StorageError("disk full"))
        failures.succeeded(completed)


def test_a_checkpoint_that_was_lost_for_whatever_reason_counts():
    subsumed = CheckpointDeclinedError("gone", reason=CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    with pytest.raises(CheckpointDeclinedError, match="Exceeded tolerable failure threshold"):
        FailedCheckpoints(0).failed(subsumed)


def test_a_number_below_minus_one_is_refused():
    with pytest.raises(InvalidConfigurationError, match="tolerable_failed_checkpoints"):
        FailedCheckpoints(-2)
