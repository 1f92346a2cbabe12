"""The factories of the backends of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.state_backend import StateBackend


class MemoryStateBackendFactory:
    """Makes backends whose snapshots travel in their handles."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend with the directories of the configuration."""
        from airflow_provider_statecheck.state.backends.memory_state_backend import MemoryStateBackend

        return MemoryStateBackend(config=config)

    def get_identifier(self) -> str:
        """Return ``memory``."""
        return "memory"


class FsStateBackendFactory:
    """Makes backends that write snapshots to files."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend with the directories of the configuration."""
        from airflow_provider_statecheck.state.backends.fs_state_backend import FsStateBackend

        return FsStateBackend(config=config)

    def get_identifier(self) -> str:
        """Return ``filesystem``."""
        return "filesystem"


class ArrowStateBackendFactory:
    """Makes backends whose state is in Arrow files, of which snapshots add only the new ones."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend as the configuration says."""
        from airflow_provider_statecheck.state.arrow.arrow_state_backend import ArrowStateBackend

        backend: StateBackend = ArrowStateBackend().configure(config)
        return backend

    def get_identifier(self) -> str:
        """Return ``arrow``."""
        return "arrow"
