"""A job of two operators with rows in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aligned_job import AlignedJob, local_job


@pytest.fixture
def job(tmp_path: Path) -> AlignedJob:
    return local_job(tmp_path)
