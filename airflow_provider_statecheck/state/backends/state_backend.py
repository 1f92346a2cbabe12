"""Contracts of state backends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    InvalidConfigurationError,
    StateCheckError,
    StateMigrationError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
    from airflow_provider_statecheck.state.schemas import OperatorSchemas
    from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation


@runtime_checkable
class StateBackend(Protocol):
    """
    Factory of the keyed and operator state of subtasks.

    A backend is pickled from the driver to the executors, so it holds only plain values.
    """

    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: Any = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> AbstractKeyedStateBackend:
        """
        Create the keyed state of one subtask.

        :param kv_registry: Registry of queryable states, if any.
        :param restored: Handles to restore; keys of other subtasks are skipped.
        :raises InvalidConfigurationError: if the range exceeds the number of key groups.
        :raises BackendRestoreError: if the state cannot be read; no resources are leaked.
        :raises StateMigrationError: if the keys have another type.
        """
        ...

    def create_operator_state_backend(
        self,
        environment: StateEnvironment,
        operator_identifier: str,
        *,
        restored: Sequence[OperatorStateHandle] = (),
    ) -> DefaultOperatorStateBackend:
        """
        Create the operator state of one subtask.

        :raises BackendRestoreError: if the state cannot be read.
        """
        ...

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of a pointer, of any job.

        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: if the pointer is missing or empty.
        :raises StorageError: if the pointer is not a URI, or the storage fails.
        :raises CheckpointNotFoundError: if there is no checkpoint.
        """
        ...


@runtime_checkable
class ConfigurableStateBackend(Protocol):
    """State backend whose unset fields can be taken from a configuration."""

    def configure(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Return this backend with its unset fields taken from a configuration.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        ...


@runtime_checkable
class StateBackendFactory(Protocol):
    """Factory of backends from a configuration. ``state.backend`` may name one by its dotted path."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Create a backend.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        ...

    def get_identifier(self) -> str:
        """Return the name of the backend in configurations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnvironment:
    """What a backend needs of the attempt in which it runs."""

    storage: CheckpointStorage
    """Storage of the restored state."""
    now_ms: Callable[[], int]
    """
    Returns the time for expiry in milliseconds; by default the logical date of the run, so that a rerun expires the
    same values.
    """
    operator_name: str = ""
    """Operator name for errors."""
    schemas: OperatorSchemas | None = None
    """Schemas of the restored state of all subtasks, if any."""


@contextlib.contextmanager
def restoring(operator_identifier: str) -> Iterator[None]:
    """
    Raise failures of a restore as ``BackendRestoreError``. Configuration and migration errors are not wrapped.

    :param operator_identifier: Uid of the operator.
    :raises BackendRestoreError: if the state cannot be read.
    """
    try:
        yield
    except (BackendRestoreError, InvalidConfigurationError, StateMigrationError):
        raise
    except (StateCheckError, OSError) as error:
        raise BackendRestoreError(
            f"The state backend of {operator_identifier} could not be restored: {error}", failures=(error,)
        ) from error
