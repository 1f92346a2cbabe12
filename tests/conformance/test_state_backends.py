"""The state backends' contract with state in files and in metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.state.backends.loading import ArrowStateBackend, FsStateBackend, MemoryStateBackend
from airflow_provider_statecheck.state.backends.state_backend import StateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.state_backend_contract import StateBackendContract


@pytest.mark.soak
class TestMemory(StateBackendContract):
    travels_in_handles = True

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return MemoryStateBackend()


@pytest.mark.soak
class TestFilesystem(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return FsStateBackend()

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(tmp_path.as_uri())


@pytest.mark.soak
class TestArrow(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return ArrowStateBackend()

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(tmp_path.as_uri())
