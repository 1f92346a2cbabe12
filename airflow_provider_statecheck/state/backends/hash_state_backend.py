"""What the backends have in common that keep state as objects in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.backends.hash_keyed_backend import HashKeyedStateBackend
from airflow_provider_statecheck.state.backends.restoring import restoring
from airflow_provider_statecheck.state.file_state_backend import AbstractFileStateBackend

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.environment import StateEnvironment
    from airflow_provider_statecheck.state.backends.hash_keyed_backend import OpenOutput
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend


class AbstractHashStateBackend(AbstractFileStateBackend):
    """Keeps state in memory while a stage works; a subclass says where snapshots go."""

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
    ) -> HashKeyedStateBackend:
        """
        Make the keyed state of one subtask.

        :param restored: The state to begin with; keys of other ranges are skipped.
        :raises InvalidConfigurationError: for a range that is not within the key groups.
        :raises BackendRestoreError: if the state cannot be read.
        :raises StateMigrationError: if the keys are of another type.
        """
        backend = HashKeyedStateBackend(
            key_serializer=key_serializer,
            number_of_key_groups=number_of_key_groups,
            key_group_range=key_group_range,
            now_ms=environment.now_ms,
            storage=environment.storage,
            open_output=self._open_output,
            operator_name=environment.operator_name,
        )
        with restoring(operator_identifier):
            backend.restore(restored)
        return backend

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
        from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend

        with restoring(operator_identifier):
            return DefaultOperatorStateBackend.restore(environment.storage, restored, environment.operator_name)

    def configure(self, config: Mapping[str, Any]) -> Self:
        """
        Return this backend with the directories that it leaves unset taken from a configuration.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        return type(self)(self.checkpoint_path, self.savepoint_path, config)

    @property
    def _open_output(self) -> OpenOutput | None:
        """Return what opens the stream of a snapshot, ``None`` for one of the checkpoint's own."""
        return None
