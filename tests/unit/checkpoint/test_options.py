"""What tasks are told of a checkpoint."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointMetaData,
    CheckpointOptions,
    CheckpointStorageLocationReference,
    CheckpointType,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

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


def test_options_are_equal_by_their_fields() -> None:
    assert CheckpointOptions.for_savepoint(PLACE) != CheckpointOptions(CheckpointType.CHECKPOINT, PLACE)
    assert CheckpointOptions.for_savepoint(PLACE) != CheckpointOptions.for_savepoint(
        CheckpointStorageLocationReference.default()
    )


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


def test_metadata_is_a_value_that_can_be_sent() -> None:
    data = CheckpointMetaData(0, NOON)
    assert pickle.loads(pickle.dumps(data)) == data == CheckpointMetaData(0, NOON)
    assert data != CheckpointMetaData(1, NOON)


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="checkpoint_id to be at least 0, found -1"):
        CheckpointMetaData(-1, NOON)
