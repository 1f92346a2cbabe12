"""What a state backend is, and what makes one from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.environment import StateEnvironment
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
    from airflow_provider_statecheck.storage.views.completed_location import CompletedCheckpointStorageLocation


@runtime_checkable
class StateBackend(Protocol):
    """
    Decides where state is while a stage works, and how snapshots of it are written.

    It is plain values: it goes from the driver to the executors by pickling.
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
        Make the keyed state of one subtask.

        :param kv_registry: What is told of states that may be queried, if anything is.
        :param restored: The state to begin with; keys of other ranges are skipped.
        :raises InvalidConfigurationError: for a range that is not within the key groups.
        :raises BackendRestoreError: if the state cannot be read; nothing is left behind then.
        :raises StateMigrationError: if the keys are of another type.
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
        Make the operator state of one subtask.

        :raises BackendRestoreError: if the state cannot be read.
        """
        ...

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of any job to which a pointer leads.

        :param storage_options: Options of the filesystem.
        :raises CheckpointNotFoundError: if there is none.
        """
        ...


@runtime_checkable
class ConfigurableStateBackend(Protocol):
    """A backend whose unset fields can be taken from a configuration."""

    def configure(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Return this backend with what it leaves unset taken from a configuration.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        ...


@runtime_checkable
class StateBackendFactory(Protocol):
    """Makes a backend from a configuration; may be named in ``state.backend`` by its dotted path."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Make a backend.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        ...

    def get_identifier(self) -> str:
        """Return the name by which configurations ask for the backend."""
        ...
