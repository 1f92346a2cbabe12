"""Directories of savepoints whose writing has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.state.writing.canonical import deleting_on_failure
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (StorageError("found no answer within 20 seconds"), {"data": 1}),
        (CorruptStateError("damaged"), {}),
        (KeyboardInterrupt(), {"data": 1}),
    ],
    ids=["outcome unknown", "damaged", "interrupted"],
)
def test_files_stay_if_the_outcome_of_a_write_is_unknown(tmp_path: Path, error: BaseException, left: object) -> None:
    """A write that was given up may still succeed, and its metadata would be left alone."""
    storage = CheckpointStorage.open(str(tmp_path))
    directory = f"{storage.base_uri}/savepoint-000000-0123456789ab"
    storage.write_bytes(f"{directory}/data", b"x")
    with pytest.raises(type(error)), deleting_on_failure(storage, directory):
        raise error
    assert storage.list_files(directory) == left
