from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStreamFactory
from tests.written_state import file_streams


@pytest.fixture
def backend() -> DefaultOperatorStateBackend:
    return DefaultOperatorStateBackend()


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(str(tmp_path / "base"))


@pytest.fixture
def streams(storage: CheckpointStorage) -> FsCheckpointStreamFactory:
    """Streams that always make files."""
    return file_streams(storage, f"{storage.base_uri}/chk-1", epoch=3)
