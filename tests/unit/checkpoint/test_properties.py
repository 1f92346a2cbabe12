"""Kinds of snapshots, whose they are and after which ends of a job they stay, and what tasks are told of them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.utils.state import DagRunState
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointMetaData,
    CheckpointOptions,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointStorageLocationReference,
    CheckpointStorageLocationReference as Reference,
    CheckpointType,
    JobStatus,
    job_status_of,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@pytest.mark.parametrize(
    ("kind", "is_savepoint", "is_synchronous", "is_terminate"),
    [
        (CheckpointType.CHECKPOINT, False, False, False),
        (CheckpointType.FULL_CHECKPOINT, False, False, False),
        (CheckpointType.SAVEPOINT, True, False, False),
        (CheckpointType.SAVEPOINT_SUSPEND, True, True, False),
        (CheckpointType.SAVEPOINT_TERMINATE, True, True, True),
    ],
)
def test_each_kind_says_whose_it_is_and_whether_it_stops_the_job(
    kind: CheckpointType, is_savepoint: bool, is_synchronous: bool, is_terminate: bool
) -> None:
    assert (kind.is_savepoint, kind.is_synchronous, kind.is_terminate) == (is_savepoint, is_synchronous, is_terminate)


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


@pytest.mark.parametrize(
    "value",
    [
        *(properties for properties, _ in ROWS),
        Reference.of_path("file:///data"),
        CheckpointOptions.for_savepoint(Reference.of_path("file:///data")),
        CheckpointMetaData(0, datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_tasks_are_told_are_values_that_can_be_sent(value: object) -> None:
    arrived = pickle.loads(pickle.dumps(value))
    assert (arrived, hash(arrived)) == (value, hash(value))


def test_a_savepoint_without_a_format_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="set canonical or native"):
        CheckpointProperties(snapshot_type=CheckpointType.SAVEPOINT)


@pytest.mark.parametrize(
    ("state", "is_by_a_person", "status"),
    [
        ("success", False, JobStatus.FINISHED),
        ("success", True, JobStatus.FINISHED),
        ("failed", False, JobStatus.FAILED),
        ("failed", True, JobStatus.CANCELED),
        (None, False, JobStatus.CANCELED),
        ("running", True, JobStatus.SUSPENDED),
    ],
)
def test_a_state_of_airflow_means_an_end_of_the_job(state: str | None, is_by_a_person: bool, status: JobStatus) -> None:
    assert job_status_of(state, is_by_a_person=is_by_a_person) is status


@pytest.mark.parametrize("state", list(DagRunState))
def test_each_state_of_a_run_is_known(state: DagRunState) -> None:
    is_over = state in (DagRunState.SUCCESS, DagRunState.FAILED)
    assert job_status_of(state.value).is_globally_terminal is is_over


@pytest.mark.parametrize(
    "state",
    [*sorted(set(TaskInstanceState) - {"success", "failed", "removed", "upstream_failed"}), "", "a state of tomorrow"],
)
def test_no_other_state_ends_the_job(state: str) -> None:
    assert job_status_of(state) is JobStatus.SUSPENDED


MAGIC = Reference.of_path("x").encoded[:-1]


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_path_comes_back_as_it_was(path: str) -> None:
    reference = Reference(Reference.of_path(path).encoded)
    assert (reference.path, reference.is_default) == (path, False)


def test_a_path_is_encoded_as_four_bytes_and_its_utf8() -> None:
    assert len(MAGIC) == 4
    assert Reference.of_path("s3://b/ä").encoded == MAGIC + "s3://b/ä".encode()


def test_no_bytes_are_the_default_and_are_equal_to_it() -> None:
    assert Reference(b"") == Reference() == Reference.default()
    assert Reference.default().is_default


@pytest.mark.parametrize(
    ("encoded", "found"),
    [
        (b"", "the default one"),
        (b"abc", "only 3 bytes, which is too short"),
        (MAGIC, "only 4 bytes, which is too short"),
        (b"wxyz/data", "bytes with another prefix"),
        (MAGIC + b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bytes_that_are_no_path_are_refused(encoded: bytes, found: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        _ = Reference(encoded).path


@pytest.mark.parametrize(("path", "found"), [("", "an empty one"), ("/a\ud800", "lone surrogates")])
def test_a_path_that_cannot_be_encoded_is_refused(path: str, found: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        Reference.of_path(path)


def test_a_reference_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="found str"):
        Reference("file:///data")  # type: ignore[arg-type]


PLACE = CheckpointStorageLocationReference.of_path("file:///data/savepoint-1")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_checkpoint_goes_to_the_configured_place() -> None:
    options = CheckpointOptions.for_checkpoint_with_default_location()
    assert options.checkpoint_type is CheckpointType.CHECKPOINT
    assert options.target_location.is_default


def test_the_options_of_the_default_place_are_one_value() -> None:
    first = CheckpointOptions.for_checkpoint_with_default_location()
    assert first is CheckpointOptions.for_checkpoint_with_default_location()
    assert pickle.loads(pickle.dumps(first)) == first


def test_a_savepoint_goes_where_it_is_told() -> None:
    assert CheckpointOptions.for_savepoint(PLACE) == CheckpointOptions(CheckpointType.SAVEPOINT, PLACE)


@pytest.mark.parametrize(
    ("kind", "place", "key"),
    [(None, PLACE, "checkpoint_type"), (CheckpointType.CHECKPOINT, None, "target_location")],
)
def test_neither_type_nor_place_may_be_missing(kind, place, key) -> None:
    with pytest.raises(InvalidConfigurationError, match=key):
        CheckpointOptions(kind, place)


def test_a_checkpoint_is_received_when_it_is_triggered_unless_said_otherwise() -> None:
    later = NOON + timedelta(seconds=2)
    assert CheckpointMetaData(3, NOON).received_at == NOON
    assert CheckpointMetaData(3, NOON, later).received_at == later


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="checkpoint_id to be at least 0, found -1"):
        CheckpointMetaData(-1, NOON)
