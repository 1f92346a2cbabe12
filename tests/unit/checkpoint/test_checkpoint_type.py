"""Kinds of snapshots, and which files each may share."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointType, SavepointFormat, SharingStrategy


@pytest.mark.parametrize(
    ("kind", "is_savepoint", "is_synchronous", "is_terminate", "sharing"),
    [
        (CheckpointType.CHECKPOINT, False, False, False, SharingStrategy.FORWARD_BACKWARD),
        (CheckpointType.FULL_CHECKPOINT, False, False, False, SharingStrategy.FORWARD),
        (CheckpointType.SAVEPOINT, True, False, False, SharingStrategy.NO_SHARING),
        (CheckpointType.SAVEPOINT_SUSPEND, True, True, False, SharingStrategy.NO_SHARING),
        (CheckpointType.SAVEPOINT_TERMINATE, True, True, True, SharingStrategy.NO_SHARING),
    ],
)
def test_each_kind_says_whose_it_is_whether_it_stops_the_job_and_what_it_shares(
    kind: CheckpointType, is_savepoint: bool, is_synchronous: bool, is_terminate: bool, sharing: SharingStrategy
) -> None:
    assert (kind.is_savepoint, kind.is_synchronous, kind.is_terminate) == (is_savepoint, is_synchronous, is_terminate)
    assert kind.sharing is sharing


def test_a_savepoint_is_canonical_or_native() -> None:
    assert [each.value for each in SavepointFormat] == ["canonical", "native"]
