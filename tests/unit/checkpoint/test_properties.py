"""Whose a snapshot is, and after which ends of a job it stays."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    JobStatus,
    SavepointFormat,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

NEVER = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
ON_FAILURE = CheckpointRetentionPolicy.RETAIN_ON_FAILURE
ON_CANCELLATION = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
ROWS = [
    # force, discarded when subsumed, finished, cancelled, failed, suspended, unclaimed
    (CheckpointProperties.for_checkpoint(NEVER), "-DDDDD-"),
    (CheckpointProperties.for_checkpoint(ON_FAILURE), "-DDD-D-"),
    (CheckpointProperties.for_checkpoint(ON_CANCELLATION), "-DD----"),
    (CheckpointProperties.for_checkpoint(NEVER, is_full=True), "-DDDDD-"),
    (CheckpointProperties.for_savepoint(), "F------"),
    (CheckpointProperties.for_savepoint(force=False), "-------"),
    (CheckpointProperties.for_sync_savepoint(terminate=False), "F------"),
    (CheckpointProperties.for_sync_savepoint(terminate=True), "F------"),
    (CheckpointProperties.for_unclaimed_snapshot(), "------U"),
]


@pytest.mark.parametrize(("properties", "row"), ROWS)
def test_the_retention_table_holds_row_by_row(properties: CheckpointProperties, row: str) -> None:
    flags = (
        properties.force,
        properties.discard_on_subsumed,
        properties.discard_on_finished,
        properties.discard_on_cancelled,
        properties.discard_on_failed,
        properties.discard_on_suspended,
        properties.unclaimed,
    )
    assert flags == tuple(letter != "-" for letter in row)


@pytest.mark.parametrize(("properties", "row"), ROWS)
def test_the_end_of_the_job_picks_its_column(properties: CheckpointProperties, row: str) -> None:
    ends = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)
    assert [properties.discard_on(end) for end in ends] == [letter == "D" for letter in row[2:6]]


def test_a_checkpoint_is_kept_on_cancellation_unless_said_otherwise() -> None:
    assert CheckpointProperties.for_checkpoint() == CheckpointProperties.for_checkpoint(ON_CANCELLATION)


def test_a_full_checkpoint_differs_in_its_type_alone() -> None:
    assert CheckpointProperties.for_checkpoint().snapshot_type is CheckpointType.CHECKPOINT
    assert CheckpointProperties.for_checkpoint(is_full=True).snapshot_type is CheckpointType.FULL_CHECKPOINT


@pytest.mark.parametrize(("terminate", "kind"), [(False, "savepoint_suspend"), (True, "savepoint_terminate")])
def test_what_a_savepoint_does_to_the_job_follows_from_its_type(terminate: bool, kind: str) -> None:
    properties = CheckpointProperties.for_sync_savepoint(terminate=terminate)
    assert properties.snapshot_type == kind
    assert (properties.is_savepoint, properties.is_synchronous, properties.is_terminate) == (True, True, terminate)


@pytest.mark.parametrize(("properties", "_"), ROWS)
def test_properties_are_values_that_can_be_sent(properties: CheckpointProperties, _: str) -> None:
    arrived = pickle.loads(pickle.dumps(properties))
    assert (arrived, hash(arrived)) == (properties, hash(properties))


def test_properties_of_other_fields_are_not_equal() -> None:
    assert CheckpointProperties.for_savepoint() != CheckpointProperties.for_savepoint(force=False)
    assert CheckpointProperties.for_savepoint() != CheckpointProperties.for_savepoint(
        savepoint_format=SavepointFormat.NATIVE
    )


def test_a_savepoint_without_a_format_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="set canonical or native"):
        CheckpointProperties(snapshot_type=CheckpointType.SAVEPOINT)
