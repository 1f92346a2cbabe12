"""What a function is given to ask for its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_statecheck.state.functions.keyed_state_access import require_keyed
from airflow_provider_statecheck.state.functions.open_span import OpenSpan
from airflow_provider_statecheck.state.operator.stream_provider import StatePartitionStreamProvider

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.keyed_state_store import KeyedStateStore
    from airflow_provider_statecheck.state.operator.operator_state_store import OperatorStateStore


class ManagedInitializationContext:
    """
    The stores of state, and what they were restored from; of use during ``initialize_state``.

    :param is_restored: Whether the run restores and this operator is in what it restores, with state or without.
    :param operator_state_store: State of the subtask.
    :param keyed_state_store: State of its keys, where the operator has keys.
    :param restored_checkpoint_id: Of the checkpoint that was restored.
    """

    def __init__(
        self,
        *,
        is_restored: bool,
        operator_state_store: OperatorStateStore,
        keyed_state_store: KeyedStateStore | None = None,
        restored_checkpoint_id: int | None = None,
    ) -> None:
        self._is_restored = is_restored
        self._operator_state_store = operator_state_store
        self._keyed_state_store = keyed_state_store
        self._restored_checkpoint_id = restored_checkpoint_id
        self._span = OpenSpan(f"a {type(self).__name__}", "during initialize_state")

    def is_restored(self) -> bool:
        """
        Tell whether the run restores and this operator is in what it restores, with state or without.

        :raises CoordinatorError: after ``initialize_state``.
        """
        self._span.require()
        return self._is_restored

    def get_restored_checkpoint_id(self) -> int | None:
        """
        Return the id of the checkpoint that was restored, ``None`` if nothing was.

        :raises CoordinatorError: after ``initialize_state``.
        """
        self._span.require()
        return self._restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """
        Return the store of what belongs to the subtask.

        :raises CoordinatorError: after ``initialize_state``.
        """
        self._span.require()
        return self._operator_state_store

    def get_keyed_state_store(self) -> KeyedStateStore:
        """
        Return the store of what belongs to keys.

        :raises CoordinatorError: on an operator without keys, or after ``initialize_state``.
        """
        self._span.require()
        return require_keyed(self._keyed_state_store)

    def end(self) -> None:
        """End the use; what runs the function calls it."""
        self._span.close()


class FunctionInitializationContext(ManagedInitializationContext):
    """What a function is given to ask for its state; of use during ``initialize_state``."""

    def get_managed_initialization_context(self) -> ManagedInitializationContext:
        """
        Return the part that is about state that a backend manages.

        :raises CoordinatorError: after ``initialize_state``.
        """
        self._span.require()
        return self


class StateInitializationContext(FunctionInitializationContext):
    """
    The stores of state, and what the function wrote by itself into streams of its own.

    :param raw_operator_state: That, piece by piece.
    """

    def __init__(
        self,
        *,
        is_restored: bool,
        operator_state_store: OperatorStateStore,
        keyed_state_store: KeyedStateStore | None = None,
        restored_checkpoint_id: int | None = None,
        raw_operator_state: Iterable[StatePartitionStreamProvider] = (),
    ) -> None:
        super().__init__(
            is_restored=is_restored,
            operator_state_store=operator_state_store,
            keyed_state_store=keyed_state_store,
            restored_checkpoint_id=restored_checkpoint_id,
        )
        self._raw_operator_state = raw_operator_state

    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """
        Return the partitions that the function wrote into its raw operator state.

        :raises CoordinatorError: after ``initialize_state``.
        """
        self._span.require()
        return self._raw_operator_state
