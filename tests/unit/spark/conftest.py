from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import WrittenStage


class Clock:
    """A clock for durations that a test sets."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"{tmp_path}/checkpoints"))
