"""The default state backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.backends.restoring import restoring
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.completed_location import (
    CompletedCheckpointStorageLocation,
    resolve_location,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
    from airflow_provider_statecheck.state.backends.environment import StateEnvironment
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend

# Pointers lead to any filesystem, whatever the directory of the storage is.
_NO_DIRECTORY = "memory://statecheck-without-directory"


@dataclass(frozen=True, slots=True)
class ArrowStateBackend:
    """
    State as sorted Arrow files on the checkpoint storage: snapshots are incremental, memory is bounded by blocks.

    Where checkpoints go is up to the storage of the stage.

    :param settings: Sizes, and how files are compressed; without any those of the configuration.
    """

    settings: ArrowStateSettings | None = None

    def configure(self, config: Mapping[str, Any]) -> ArrowStateBackend:
        """
        Return this backend with settings of a configuration, unless it has some.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        return self if self.settings is not None else replace(self, settings=ArrowStateSettings.from_config(config))

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
    ) -> ArrowKeyedStateBackend:
        """
        Make the keyed state of one subtask; of what is restored only the descriptions of files are read.

        :param restored: The state to begin with; keys of other ranges are skipped.
        :raises InvalidConfigurationError: for a range that is not within the key groups.
        :raises BackendRestoreError: if the description of the state cannot be read.
        :raises StateMigrationError: if the keys are of another type.
        """
        from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend

        backend = ArrowKeyedStateBackend(
            key_serializer=key_serializer,
            number_of_key_groups=number_of_key_groups,
            key_group_range=key_group_range,
            now_ms=environment.now_ms,
            storage=environment.storage,
            settings=self.settings,
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

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of any job to which a pointer leads.

        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: for no pointer or an empty one.
        :raises StorageError: for text that is no URI, or if the storage fails.
        :raises CheckpointNotFoundError: if there is none.
        """
        base = _NO_DIRECTORY if not pointer or not storage_options else pointer
        return resolve_location(CheckpointStorage.open(base, **storage_options), pointer)
