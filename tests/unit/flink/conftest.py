"""A job of two operators with rows in SQLite, and its coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from tests.aligned_job import AlignedJob, local_job


@pytest.fixture
def job(tmp_path: Path) -> AlignedJob:
    return local_job(tmp_path)


@pytest.fixture
def coordinator(job: AlignedJob) -> CheckpointCoordinator:
    return job.coordinator(max_concurrent_checkpoints=3)
