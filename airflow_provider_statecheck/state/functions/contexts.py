"""
Contexts passed to user functions.

A context is valid only during the call that receives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, OperatorStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.keyed.abstract_backend import KeyedStateStore
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.operator.states import RawOperatorStateOutput, StatePartitionStreamProvider
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, StateDescriptor
    from airflow_provider_statecheck.state.functions.task_owned import TaskOwnedState
    from airflow_provider_statecheck.state.keyed.states import BatchState, State
    from airflow_provider_statecheck.state.operator.backend import OperatorStateStore
    from airflow_provider_statecheck.state.operator.states import BroadcastState, ReadOnlyBroadcastState


K = TypeVar("K")
S = TypeVar("S")
_NO_KEY = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Operator, subtask and attempt in which a function runs."""

    task_name: str
    """Uid of the operator."""
    index_of_this_subtask: int
    number_of_parallel_subtasks: int
    max_number_of_parallel_subtasks: int
    """Number of key groups."""
    attempt_number: int = 0
    """Number of earlier attempts of the task."""
    logical_date: datetime | None = None
    """Logical date of the Dag run, equal in all attempts."""


class _Context:
    """Context that is valid until the operator ends it."""

    _span: ClassVar[str]
    """Span in which it may be used, for errors."""
    _is_open = True

    def end(self) -> None:
        """End the validity of the context. Called by the operator."""
        self._is_open = False

    def _require_open(self) -> None:
        if not self._is_open:
            raise CoordinatorError(
                f"Expected a {type(self).__name__} to be used {self._span}, found a later call; keep a reference to "
                "the state, not to the context."
            )


class RuntimeContext(_Context, KeyedStateStore):
    """
    Task information and keyed state, valid from ``open`` to ``close``.

    The methods that return state also raise ``CoordinatorError`` if the operator has no keys, or after ``close``.

    :param keyed_state_store: Keyed state, or ``None`` for an operator without keys.
    :param task_owned_state: Files of the function's own.
    """

    _span = "from open to close"

    def __init__(
        self, task_info: TaskInfo, keyed_state_store: KeyedStateStore | None, task_owned_state: TaskOwnedState
    ) -> None:
        super().__init__(self._keyed_state)
        self._task_info = task_info
        self._keyed = keyed_state_store
        self._task_owned_state = task_owned_state

    @property
    def task_info(self) -> TaskInfo:
        """The subtask in which the function runs."""
        return self._task_info

    @property
    def logical_date(self) -> datetime | None:
        """The logical date of the Dag run, or ``None`` outside of one."""
        return self._task_info.logical_date

    def get_task_owned_state(self) -> TaskOwnedState:
        """Return the files of the function's own, which outlive checkpoints."""
        self._require_open()
        return self._task_owned_state

    def _keyed_state(self, descriptor: StateDescriptor[Any]) -> State:
        self._require_open()
        return _require_keyed(self._keyed).state_of(descriptor)


class BroadcastStates:
    """
    Broadcast states of a function.

    :param store: State of the subtask; ``None`` for a function without broadcast states.
    :param descriptors: Descriptors of the states, which this registers.
    """

    def __init__(
        self, store: OperatorStateStore | None = None, descriptors: Iterable[MapStateDescriptor[Any]] = ()
    ) -> None:
        self._states = {} if store is None else {each.name: store.get_broadcast_state(each) for each in descriptors}
        self._read_only = {name: state.read_only() for name, state in self._states.items()}

    def writable(self, descriptor: MapStateDescriptor[Any]) -> BroadcastState[Any, Any]:
        """
        Return the state of a descriptor.

        Raises ``InvalidConfigurationError`` if the function has none of its name.
        """
        return self._found(self._states, descriptor)

    def read_only(self, descriptor: MapStateDescriptor[Any]) -> ReadOnlyBroadcastState[Any, Any]:
        """Return the state for reads; raises ``InvalidConfigurationError`` if the function has none of its name."""
        return self._found(self._read_only, descriptor)

    def _found(self, states: Mapping[str, S], descriptor: MapStateDescriptor[Any]) -> S:
        found = states.get(descriptor.name)
        if found is None:
            raise InvalidConfigurationError(
                f"Expected one of the broadcast states {sorted(states)}, found {descriptor.name!r}; name its "
                "descriptor in broadcast(source, ...) before the function."
            )
        return found


class BroadcastContext(_Context):
    """
    Broadcast states of a function, valid during ``process_broadcast_element``.

    Its methods raise ``CoordinatorError`` afterwards.

    :param apply: Calls a function for each key of a state in a namespace.
    """

    _span = "during process_broadcast_element"

    def __init__(self, states: BroadcastStates, apply: Callable[[str, Any, Callable[[Any, Any], None]], None]) -> None:
        self._states = states
        self._apply = apply

    def get_broadcast_state(self, descriptor: MapStateDescriptor[Any]) -> BroadcastState[Any, Any]:
        """
        Return a broadcast state for reads and writes.

        Each subtask has to make the same changes.

        :raises InvalidConfigurationError: if the stage does not declare the state.
        """
        self._require_open()
        return self._states.writable(descriptor)

    def apply_to_keyed_state(self, descriptor: StateDescriptor[Any], function: Callable[[Any, Any], None]) -> None:
        """
        Call a function with each key of the subtask that has a state, and the state.

        :param descriptor: Descriptor of a keyed state.
        """
        self._require_open()
        self._apply(VOID_NAMESPACE, descriptor, function)


class KeyedContext(Generic[K]):
    """
    Key and timestamp of the current element. One object is reused for all elements of a subtask.

    It is valid only during the call that receives it. A generator that is consumed later must not use it.

    :param broadcast: Broadcast states of the function.
    """

    __slots__ = ("_broadcast", "_is_open", "_key", "_timestamp")

    def __init__(self, broadcast: BroadcastStates | None = None) -> None:
        self._broadcast = broadcast
        self._is_open = False
        self._key: object = _NO_KEY
        self._timestamp: int | None = None

    @property
    def current_key(self) -> K:
        """
        The key of the current element.

        :raises CoordinatorError: if used outside of a call, or while a batch is processed.
        """
        if self._key is _NO_KEY:
            raise CoordinatorError(
                "Expected one element in progress for the current key, found none; in process_batch, read the keys "
                "from the columns of the table."
            )
        return cast(K, self._key)

    def timestamp(self) -> int | None:
        """
        Return the timestamp of the element in milliseconds since the epoch, or ``None`` if it has none.

        :raises CoordinatorError: if used outside of a call.
        """
        if not self._is_open:
            raise CoordinatorError(
                "Expected an element in progress for the timestamp, found none; call timestamp() while one is "
                "processed."
            )
        return self._timestamp

    def get_broadcast_state(self, descriptor: MapStateDescriptor[Any]) -> ReadOnlyBroadcastState[Any, Any]:
        """
        Return a broadcast state, which refuses writes: elements with a key are not the same in all subtasks.

        :raises InvalidConfigurationError: if the stage does not declare the state.
        """
        return (self._broadcast or BroadcastStates()).read_only(descriptor)

    def begin(self, key: K, timestamp: int | None = None) -> None:
        """Set the current element. Called by the operator."""
        self._is_open, self._key, self._timestamp = True, key, timestamp

    def begin_batch(self) -> None:
        """Start a batch with elements of many keys. Called by the operator."""
        self._is_open, self._key, self._timestamp = True, _NO_KEY, None

    def end(self) -> None:
        """Unset the current element or batch. Called by the operator."""
        self._is_open, self._key, self._timestamp = False, _NO_KEY, None


class KeyedBatchContext(KeyedContext[Any]):
    """
    Distinct keys of a batch, and their state.

    :param state_of: Returns the batch state of a descriptor.
    :param broadcast: Broadcast states of the function.
    """

    __slots__ = ("_state_of", "keys")

    def __init__(
        self, state_of: Callable[[StateDescriptor[Any]], BatchState], broadcast: BroadcastStates | None = None
    ) -> None:
        super().__init__(broadcast)
        self._state_of = state_of
        self.keys: KeyBatch = KeyBatch((), ())
        """The distinct keys of the table."""

    def state(self, descriptor: StateDescriptor[Any]) -> BatchState:
        """
        Return the state of a descriptor for reads and writes of many keys at once.

        :raises InvalidConfigurationError: for a list, map or folding state.
        """
        return self._state_of(descriptor)


class FunctionSnapshotContext(_Context):
    """Current checkpoint, valid during ``snapshot_state``; its methods raise ``CoordinatorError`` afterwards."""

    _span = "during snapshot_state"

    def __init__(self, checkpoint: CheckpointMetaData) -> None:
        self._checkpoint = checkpoint

    def get_checkpoint_id(self) -> int:
        """Return the id of the checkpoint."""
        self._require_open()
        return self._checkpoint.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return the trigger time of the checkpoint in milliseconds since the epoch."""
        self._require_open()
        return self._checkpoint.timestamp_milliseconds


class StateSnapshotContext(FunctionSnapshotContext):
    """
    Current checkpoint and its streams, valid during ``snapshot_state``.

    Its methods raise ``CoordinatorError`` afterwards.

    :param streams: Stream factory of the checkpoint, or ``None`` if it takes no raw state.
    """

    def __init__(self, checkpoint: CheckpointMetaData, streams: CheckpointStreamFactory | None = None) -> None:
        super().__init__(checkpoint)
        self._streams = streams
        self._raw: RawOperatorStateOutput | None = None

    def get_checkpoint_stream_factory(self) -> CheckpointStreamFactory:
        """
        Return the stream factory of the checkpoint.

        :raises CoordinatorError: if the checkpoint takes no raw state.
        """
        self._require_open()
        if self._streams is None:
            raise CoordinatorError(
                "Expected a checkpoint with streams for raw state, found one that takes no raw state; use managed "
                "state."
            )
        return self._streams

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """
        Return the output of the function's raw operator state. Each call returns the same output.

        :raises CoordinatorError: if the checkpoint takes no raw state.
        """
        streams = self.get_checkpoint_stream_factory()
        if self._raw is None:
            stream = streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
            self._raw = RawOperatorStateOutput(stream)
        return self._raw

    def close_raw_state(self) -> tuple[OperatorStateHandle, ...]:
        """
        Close the raw state and return its handle, if any was written. Called by the operator.

        :raises StorageError: if the storage fails.
        """
        handle = None if self._raw is None else self._raw.close_and_get_handle()
        return () if handle is None else (handle,)

    def end(self) -> None:
        """End the validity of the context, and discard raw state that was not closed."""
        super().end()
        if self._raw is not None:
            self._raw.close()


class ManagedInitializationContext(_Context):
    """
    State stores and restored checkpoint, valid during ``initialize_state``.

    Its methods raise ``CoordinatorError`` afterwards.

    :param is_restored: Whether the restored checkpoint contains the operator, with or without state.
    :param operator_state_store: State of the subtask.
    :param keyed_state_store: State of the keys, or ``None`` for an operator without keys.
    :param restored_checkpoint_id: Id of the restored checkpoint.
    :param raw_operator_state: Partitions of the raw operator state.
    :param task_owned_state: Files of the function's own.
    """

    _span = "during initialize_state"

    def __init__(
        self,
        *,
        is_restored: bool,
        operator_state_store: OperatorStateStore,
        task_owned_state: TaskOwnedState,
        keyed_state_store: KeyedStateStore | None = None,
        restored_checkpoint_id: int | None = None,
        raw_operator_state: Iterable[StatePartitionStreamProvider] = (),
    ) -> None:
        self._is_restored = is_restored
        self._operator_state_store = operator_state_store
        self._keyed_state_store = keyed_state_store
        self._restored_checkpoint_id = restored_checkpoint_id
        self._raw_operator_state = raw_operator_state
        self._task_owned_state = task_owned_state

    def is_restored(self) -> bool:
        """Return whether the restored checkpoint contains the operator, with or without state."""
        self._require_open()
        return self._is_restored

    def get_restored_checkpoint_id(self) -> int | None:
        """Return the id of the restored checkpoint, or ``None`` without a restore."""
        self._require_open()
        return self._restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the store of operator state."""
        self._require_open()
        return self._operator_state_store

    def get_keyed_state_store(self) -> KeyedStateStore:
        """
        Return the store of keyed state.

        :raises CoordinatorError: if the operator has no keys.
        """
        self._require_open()
        return _require_keyed(self._keyed_state_store)

    def get_task_owned_state(self) -> TaskOwnedState:
        """Return the files of the function's own, which outlive checkpoints; it may be used until ``close``."""
        self._require_open()
        return self._task_owned_state


class FunctionInitializationContext(ManagedInitializationContext):
    """Initialization context of a function, valid during ``initialize_state``."""

    def get_managed_initialization_context(self) -> ManagedInitializationContext:
        """Return the context of managed state."""
        self._require_open()
        return self


class StateInitializationContext(FunctionInitializationContext):
    """Initialization context with restored raw operator state, valid during ``initialize_state``."""

    def runtime_context(self, task_info: TaskInfo) -> RuntimeContext:
        """Return the context from ``open`` to ``close``, with the same state. Called by the operator."""
        return RuntimeContext(task_info, self._keyed_state_store, self._task_owned_state)

    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """Return the restored partitions of the raw operator state."""
        self._require_open()
        return self._raw_operator_state


def _require_keyed(store: KeyedStateStore | None) -> KeyedStateStore:
    if store is None:
        raise CoordinatorError(
            "Expected an operator with keys, found one without keys; put key_by before it, or use operator state."
        )
    return store
