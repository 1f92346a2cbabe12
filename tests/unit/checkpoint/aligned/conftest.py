"""A job of two operators with rows in SQLite, and its coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.aligned.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.aligned_job import AlignedJob
from tests.messages import ManualClock
from tests.sqlite_rows import new_store


@pytest.fixture
def job(tmp_path: Path) -> AlignedJob:
    clock = ManualClock()
    jobs = new_store(clock)
    return AlignedJob(
        jobs,
        CheckpointStorage.open(str(tmp_path / "checkpoints")),
        clock,
        savepoint_dir=str(tmp_path / "savepoints"),
    )


@pytest.fixture
def coordinator(job: AlignedJob) -> CheckpointCoordinator:
    return job.coordinator(max_concurrent_checkpoints=3)
