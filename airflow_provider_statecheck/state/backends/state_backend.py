"""Contract of a state backend, its environment and its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnvironment:
    """One subtask of one attempt."""

    storage: CheckpointStorage
    """From which restored state is read."""
    subtask_index: int
    parallelism: int
    max_parallelism: int
    now_ms: Callable[[], int]
    """Gives the time by which state expires; by default the logical date of the run, so that a rerun finds the same."""
    epoch: int
    """Of the attempt."""
    operator_name: str = ""
    """What users call the operator, for errors."""
    schemas: OperatorSchemas | None = None
    """What the restored state was, if state is restored."""


Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[Handle]):
    """Where a snapshot went."""

    handle: Handle | None = None
    """For the coordinator; ``None`` if there was nothing to save."""
    new_bytes: int = 0
    """How many bytes were written for it; those of earlier snapshots do not count."""

    @classmethod
    def empty(cls) -> SnapshotResult[Handle]:
        """Return what is given where there was nothing to save."""
        return cls()

    @property
    def is_empty(self) -> bool:
        """Tell whether there was nothing to save."""
        return self.handle is None


class StateSnapshot(Protocol[Handle]):
    """A view of state at one moment that is still to be written; later changes are not in it."""

    def run(self) -> SnapshotResult[Handle]:
        """
        Write the state; called once, perhaps in another thread.

        :raises StorageError: if the storage fails; then no file is left.
        :raises SnapshotCancelledError: if it was cancelled.
        """
        ...

    def cancel(self) -> None:
        """End the writing and delete what it wrote; without effect once it is done."""
        ...
