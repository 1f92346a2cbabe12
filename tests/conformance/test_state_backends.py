"""The state backends' contract over state in memory and in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowStateBackend
from airflow_provider_statecheck.state.backends.hash_state_backend import FsStateBackend, MemoryStateBackend
from airflow_provider_statecheck.state.backends.state_backend import StateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.state_backend_contract import StateBackendContract


class TestMemory(StateBackendContract):
    travels_in_handles = True

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return MemoryStateBackend()


class TestFilesystem(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return FsStateBackend()

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(tmp_path.as_uri())


class TestArrow(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return ArrowStateBackend()

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(tmp_path.as_uri())


@dataclass(frozen=True)
class Switched:
    """A backend in whose place another one restores the state, as after a change of the setting."""

    before: StateBackend
    after: StateBackend

    def create_keyed_state_backend(self, *arguments: Any, **named: Any) -> Any:
        backend = self.after if named.get("restored") else self.before
        return backend.create_keyed_state_backend(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.before, name)


@pytest.mark.soak
class TestFromMemoryToArrow(TestArrow):
    travels_in_handles = True

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return Switched(MemoryStateBackend(), ArrowStateBackend())


class TestFromFilesystemToArrow(TestArrow):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return Switched(FsStateBackend(), ArrowStateBackend())


@pytest.mark.soak
class TestFromArrowToFilesystem(TestArrow):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return Switched(ArrowStateBackend(), FsStateBackend())
