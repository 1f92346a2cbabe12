from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.maintenance.test_job_savepoints import SavedJob
from tests.unit.written_stage import WrittenStage


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))


@pytest.fixture
def job(tmp_path: Path) -> SavedJob:
    return SavedJob(tmp_path)
