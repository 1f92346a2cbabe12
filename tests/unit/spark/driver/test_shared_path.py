from __future__ import annotations

import errno
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.driver.readiness import require_shared_path


class SparkThatFails:
    """A session that is not asked before the task has written, or that fails as a cluster does."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def read(self) -> object:
        raise self._error


def test_folder_that_cannot_be_made_is_nothing_that_a_retry_mends(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentNotReadyError, match="use another checkpoint_dir"):
        require_shared_path(SparkThatFails(AssertionError()), f"file://{tmp_path}/file/x")  # type: ignore[arg-type]


def test_volume_that_fails_for_a_moment_leaves_room_for_a_retry(tmp_path: Path) -> None:
    spark = SparkThatFails(OSError(errno.ESTALE, "Stale file handle"))
    with pytest.raises(StorageError, match="Stale file handle"):
        require_shared_path(spark, f"file://{tmp_path}/x")  # type: ignore[arg-type]
    assert list((tmp_path / "x").iterdir()) == []
