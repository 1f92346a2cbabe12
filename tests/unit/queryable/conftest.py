"""The job of the tests of oracles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.queryable.found_job import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(CheckpointStorage.open(tmp_path.as_uri()))
    yield made
    for stage in made.stages:
        stage.close()
