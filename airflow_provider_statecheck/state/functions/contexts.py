"""Contexts that user functions receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, OperatorStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.operator.raw_state import RawOperatorStateOutput, StatePartitionStreamProvider
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.keyed.keyed_state_store import BatchState, KeyedStateStore
    from airflow_provider_statecheck.state.keyed.map_state import MapState
    from airflow_provider_statecheck.state.keyed.states import (
        AggregatingState,
        FoldingState,
        ListState,
        ReducingState,
        ValueState,
    )
    from airflow_provider_statecheck.state.operator.states import OperatorStateStore


K = TypeVar("K")
_NONE = object()


class KeyedContext(Generic[K]):
    """
    The key and the time of the element at hand; one object serves all elements of a subtask.

    It is of no use outside of the call that it is given to, nor to a generator that is read later.
    """

    __slots__ = ("_is_open", "_key", "_timestamp")

    def __init__(self) -> None:
        self._is_open = False
        self._key: object = _NONE
        self._timestamp: int | None = None

    @property
    def current_key(self) -> K:
        """
        Return the key of the element.

        :raises CoordinatorError: outside of a call, or where there are elements of many keys.
        """
        if self._key is _NONE:
            raise CoordinatorError(
                "Expected to be asked for the current key while one element is processed, found no key; "
                "in process_batch take it from the columns of the table."
            )
        return cast(K, self._key)

    def timestamp(self) -> int | None:
        """
        Return the time of the element in milliseconds since 1970, ``None`` if it has none.

        :raises CoordinatorError: outside of a call.
        """
        if not self._is_open:
            raise CoordinatorError(
                "Expected to be asked for the timestamp while an element is processed, found none at hand."
            )
        return self._timestamp

    def begin(self, key: K, timestamp: int | None = None) -> None:
        """Go to an element; what runs the function calls it."""
        self._is_open, self._key, self._timestamp = True, key, timestamp

    def begin_batch(self) -> None:
        """Go to elements of many keys."""
        self._is_open, self._key, self._timestamp = True, _NONE, None

    def end(self) -> None:
        """Leave the element or the batch."""
        self._is_open, self._key, self._timestamp = False, _NONE, None


class KeyedBatchContext(KeyedContext[Any]):
    """
    The keys of a table, each once, and their state.

    :param state_of: Gives the state of a descriptor for many keys.
    """

    __slots__ = ("_state_of", "keys")

    def __init__(self, state_of: Callable[[StateDescriptor[Any]], BatchState]) -> None:
        super().__init__()
        self._state_of = state_of
        self.keys: KeyBatch = KeyBatch((), ())
        """The distinct keys of the table."""

    def state(self, descriptor: StateDescriptor[Any]) -> BatchState:
        """
        Return a state of single values, to be read and written for many keys at once.

        :raises InvalidConfigurationError: for lists, maps and folded values.
        """
        return self._state_of(descriptor)


class OpenSpan:
    """
    Begins open and is closed once.

    :param what: Names the context in errors.
    :param when: Says when it is of use.
    """

    __slots__ = ("_is_open", "_what", "_when")

    def __init__(self, what: str, when: str) -> None:
        self._what = what
        self._when = when
        self._is_open = True

    def close(self) -> None:
        """End the use."""
        self._is_open = False

    def require(self) -> None:
        """
        Go on while the span is open.

        :raises CoordinatorError: after it was closed.
        """
        if not self._is_open:
            raise CoordinatorError(
                f"Expected {self._what} to be used {self._when}, found a later use; keep the state that it gave, not it."
            )


class FunctionSnapshotContext:
    """
    The checkpoint at hand; of use during ``snapshot_state``.

    :param checkpoint_id: Of the checkpoint.
    :param checkpoint_timestamp: When it was triggered, in milliseconds since 1970.
    """

    def __init__(self, checkpoint_id: int, checkpoint_timestamp: int) -> None:
        self._checkpoint_id = checkpoint_id
        self._checkpoint_timestamp = checkpoint_timestamp
        self._span = OpenSpan(f"a {type(self).__name__}", "during snapshot_state")

    def get_checkpoint_id(self) -> int:
        """
        Return the id of the checkpoint.

        :raises CoordinatorError: after ``snapshot_state``.
        """
        self._span.require()
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """
        Return when the checkpoint was triggered, in milliseconds since 1970.

        :raises CoordinatorError: after ``snapshot_state``.
        """
        self._span.require()
        return self._checkpoint_timestamp

    def end(self) -> None:
        """End the use; what takes the checkpoint calls it."""
        self._span.close()


class StateSnapshotContext(FunctionSnapshotContext):
    """
    The checkpoint at hand, and its streams.

    :param streams: What opens streams of this checkpoint, if there is such.
    """

    def __init__(
        self, checkpoint_id: int, checkpoint_timestamp: int, streams: CheckpointStreamFactory | None = None
    ) -> None:
        super().__init__(checkpoint_id, checkpoint_timestamp)
        self._streams = streams
        self._raw: RawOperatorStateOutput | None = None

    def get_checkpoint_stream_factory(self) -> CheckpointStreamFactory:
        """
        Return what opens streams of this checkpoint.

        :raises CoordinatorError: after ``snapshot_state``, or where the checkpoint has none.
        """
        self._span.require()
        if self._streams is None:
            raise CoordinatorError("Expected a checkpoint with streams of its own, found one that takes no raw state.")
        return self._streams

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """
        Return the stream of the function's raw operator state, the same one each time.

        :raises CoordinatorError: after ``snapshot_state``, or where the checkpoint has no streams.
        """
        streams = self.get_checkpoint_stream_factory()
        if self._raw is None:
            stream = streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
            self._raw = RawOperatorStateOutput(stream)
        return self._raw

    def close_raw_state(self) -> tuple[OperatorStateHandle, ...]:
        """
        Make the raw state durable and return where it is; what takes the checkpoint calls it.

        :raises StorageError: if the storage fails.
        """
        handle = None if self._raw is None else self._raw.close_and_get_handle()
        return () if handle is None else (handle,)

    def end(self) -> None:
        """End the use, and give up raw state that was not made durable."""
        super().end()
        if self._raw is not None:
            self._raw.close()


def require_keyed(store: KeyedStateStore | None) -> KeyedStateStore:
    """
    Return the keyed state store.

    :raises CoordinatorError: for an operator that has no keys.
    """
    if store is None:
        raise CoordinatorError(
            "Expected an operator with keys, found one without; put key_by before it, or use operator state."
        )
    return store


T = TypeVar("T")
Acc = TypeVar("Acc")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Which subtask of which operator a function runs in."""

    task_name: str
    """The uid of the operator."""
    index_of_this_subtask: int
    number_of_parallel_subtasks: int
    max_number_of_parallel_subtasks: int
    """The number of key groups."""
    attempt_number: int = 0
    """How many tries of the task came before."""
    logical_date: datetime | None = None
    """Of the Dag run; it is the same in each try."""


class RuntimeContext:
    """
    Where a function runs, and its keyed state; of use from ``open`` to ``close``.

    :param task_info: Which subtask it is.
    :param keyed_state_store: Keyed state, where the operator has keys.
    """

    def __init__(self, task_info: TaskInfo, keyed_state_store: KeyedStateStore | None = None) -> None:
        self._task_info = task_info
        self._keyed = keyed_state_store
        self._span = OpenSpan("a RuntimeContext", "from open to close")

    @property
    def task_info(self) -> TaskInfo:
        """Return which subtask it is."""
        return self._task_info

    @property
    def logical_date(self) -> datetime | None:
        """Return the logical date of the Dag run, ``None`` outside of one."""
        return self._task_info.logical_date

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """
        Return keyed state of one value.

        :raises CoordinatorError: on an operator without keys, or after ``close``.
        """
        return self._store().get_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return keyed state of many values; raises as ``get_state``."""
        return self._store().get_list_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return keyed state that joins each value to those before; raises as ``get_state``."""
        return self._store().get_reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return keyed state of an accumulator; raises as ``get_state``."""
        return self._store().get_aggregating_state(descriptor)

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return keyed state into which values are folded; raises as ``get_state``."""
        return self._store().get_folding_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return keyed state of entries; raises as ``get_state``."""
        return self._store().get_map_state(descriptor)

    def end(self) -> None:
        """End the use; what runs the function calls it after ``close``."""
        self._span.close()

    def _store(self) -> KeyedStateStore:
        self._span.require()
        return require_keyed(self._keyed)


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
