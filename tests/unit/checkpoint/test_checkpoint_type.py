"""Kinds of snapshots."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointType, SavepointFormat


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


def test_a_savepoint_is_canonical_or_native() -> None:
    assert [each.value for each in SavepointFormat] == ["canonical", "native"]
