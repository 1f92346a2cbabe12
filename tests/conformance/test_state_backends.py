"""The contract of state backends, with state in metadata and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends import (
    ArrowStateBackend,
    FsStateBackend,
    MemoryStateBackend,
    StateBackend,
)
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


class TestArrowWithSmallSizes(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return ArrowStateBackend(ArrowStateSettings(block_rows=2, part_bytes=2048, memtable_bytes=1, cache_bytes=4096))

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(tmp_path.as_uri())
