from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting


@pytest.fixture
def backend() -> DefaultOperatorStateBackend:
    return DefaultOperatorStateBackend()


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(str(tmp_path / "base"))


@pytest.fixture
def streams(storage: CheckpointStorage) -> FsCheckpointStreamFactory:
    """Streams that always make files."""
    base = storage.base_uri
    writing = StateWriting(epoch=3, inline_threshold=0)
    return FsCheckpointStreamFactory(
        storage=storage, exclusive=f"{base}/chk-1", shared=f"{base}/shared", writing=writing
    )
