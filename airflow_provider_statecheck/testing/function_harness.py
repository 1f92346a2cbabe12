"""Harnesses for user functions with state and for keyed state, without Spark and without files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION, CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.backends import StateBackend, backend_of_stage
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.functions.contexts import (
    BroadcastContext,
    BroadcastStates,
    KeyedContext,
    StateInitializationContext,
    TaskInfo,
)
from airflow_provider_statecheck.state.functions.task_owned import in_memory
from airflow_provider_statecheck.state.functions.user_functions import (
    FlatMapFunction,
    FunctionLifecycle,
    KeyedProcessFunction,
    as_map_function,
    end_of_subtask,
    wants_end_of_input,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend, StateEnvironment
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.operator.states import raw_operator_state_inputs
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    FsCheckpointStorageAccess,
    MemoryCheckpointStreamFactory,
)
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory, StateWriting

_KEY_GROUPS = 128
_MOST_STATE = 64 * 1024 * 1024
_NAME = "function"


class FunctionHarness:
    """
    Runs one function in one subtask.

    ``process`` passes an element and returns the emitted values. ``snapshot`` returns the state, from which another
    harness can be restored.

    :param function: A ``MapFunction``, a ``FlatMapFunction`` or a ``KeyedProcessFunction`` of single elements, or a
        plain function.
    :param key: The type of the key, or a tuple of types for a key with several columns; ``None`` for no keyed state.
    :param restored: The result of ``snapshot`` of another harness.
    :param now_ms: A function that returns the time for the expiry of state, in milliseconds.
    :param state_backend: The state backend or its name, by default the default backend of a stage.
    :param broadcast: The descriptors of the broadcast states of a ``KeyedBroadcastProcessFunction``.
    :param snapshot_between_calls: Whether each call of ``process`` is a separate increment: the state is saved, the
        function is closed, and a copy of the function is restored from the state. Values outside of state are lost.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: Any = None,
        restored: OperatorSubtaskState | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        state_backend: StateBackend | str | None = None,
        broadcast: Sequence[MapStateDescriptor[Any]] = (),
        snapshot_between_calls: bool = False,
    ) -> None:
        self._given = function
        self._key = key
        self._environment = _environment(now_ms)
        self._state_backend = backend_of_stage(state_backend, {})
        self._snapshot_between_calls = snapshot_between_calls
        self._descriptors = tuple(broadcast)
        self._begin(restored)

    def process(self, value: Any, *, key: Any = None, timestamp: int | None = None) -> list[Any]:
        """
        Process an element and return the emitted values.

        :param value: The element.
        :param key: The key of the element, for keyed functions.
        :param timestamp: The timestamp of the element, in milliseconds since 1970.
        """
        return self._after_call(self._processed(value, key, timestamp))

    def process_broadcast(self, value: Any) -> list[Any]:
        """Process an element of the broadcast input and return the emitted values."""
        if self._keyed is None:
            raise CoordinatorError("Expected a type of keys for a function with keyed state, found none; pass key=.")
        context = BroadcastContext(self._broadcast, self._keyed.apply_to_all_keys)
        emitted = list(self._function.process_broadcast_element(value, context) or ())
        context.end()
        return self._after_call(emitted)

    def end_of_input(self) -> list[Any]:
        """End the input and return the values emitted for the keys with state, then those of the subtask."""
        emitted: list[Any] = []
        if isinstance(self._function, KeyedProcessFunction) and wants_end_of_input(self._function):
            for key in self._keys():
                emitted += self._called(self._function.on_end_of_input, key, None)
        return emitted + end_of_subtask(self._function)

    def snapshot(self, checkpoint_id: int = 1, timestamp: int = 0) -> OperatorSubtaskState:
        """
        Take a snapshot and return its state.

        :param checkpoint_id: The id of the checkpoint.
        :param timestamp: The trigger time, in milliseconds since 1970.
        :raises CheckpointException: if ``snapshot_state`` raises an error.
        """
        streams = MemoryCheckpointStreamFactory(max_state_size=_MOST_STATE)
        triggered_at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=timestamp)
        raw = self._lifecycle.snapshot(CheckpointMetaData(checkpoint_id, triggered_at), streams)
        operator = self._operator.snapshot(checkpoint_id, timestamp, streams).run().handle
        keyed = None if self._keyed is None else self._keyed.snapshot(checkpoint_id, timestamp, streams).run().handle
        return OperatorSubtaskState(
            managed_operator=() if operator is None else (operator,),
            raw_operator=raw,
            managed_keyed=() if keyed is None else (keyed,),
        )

    def close(self) -> None:
        """Close the function and dispose of its state."""
        try:
            self._lifecycle.close()
        finally:
            self._operator.dispose()
            if self._keyed is not None:
                self._keyed.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, restored: OperatorSubtaskState | None) -> None:
        state = restored or OperatorSubtaskState()
        self._function = deepcopy(self._given) if self._snapshot_between_calls else self._given
        self._operator: Any = self._state_backend.create_operator_state_backend(
            self._environment, _NAME, restored=state.managed_operator
        )
        self._keyed = None if self._key is None else self._keyed_backend(state)
        self._lifecycle = FunctionLifecycle(self._function, _task_info())
        context = StateInitializationContext(
            is_restored=restored is not None,
            operator_state_store=self._operator,
            task_owned_state=in_memory(self._environment.storage),
            keyed_state_store=None if self._keyed is None else self._keyed.store,
            raw_operator_state=raw_operator_state_inputs(self._environment.storage, state.raw_operator),
        )
        self._lifecycle.initialize(context)
        self._broadcast = BroadcastStates(self._operator, self._descriptors)
        self._context: KeyedContext[Any] = KeyedContext(self._broadcast)

    def _after_call(self, emitted: list[Any]) -> list[Any]:
        if self._snapshot_between_calls:
            saved = self.snapshot()
            self.close()
            self._begin(saved)
        return emitted

    def _keyed_backend(self, state: OperatorSubtaskState) -> AbstractKeyedStateBackend:
        types = self._key if isinstance(self._key, tuple) else (self._key,)
        fields = tuple(KeyField(f"key_{place}", serializer_of(each).arrow_type) for place, each in enumerate(types))
        backend: AbstractKeyedStateBackend = self._state_backend.create_keyed_state_backend(
            self._environment,
            "job",
            _NAME,
            KeySerializer(fields),
            _KEY_GROUPS,
            KeyGroupRange(0, _KEY_GROUPS - 1),
            restored=state.managed_keyed,
        )
        return backend

    def _processed(self, value: Any, key: Any, timestamp: int | None) -> list[Any]:
        if self._keyed is not None:
            self._keyed.set_current_key(key)
        if isinstance(self._function, KeyedProcessFunction):
            return self._called(self._function.process_element, key, timestamp, value)
        if isinstance(self._function, FlatMapFunction):
            return list(self._function.flat_map(value))
        return [as_map_function(self._function).map(value)]

    def _called(self, method: Callable[..., Any], key: Any, timestamp: int | None, *element: Any) -> list[Any]:
        self._context.begin(key, timestamp)
        try:
            return list(method(*element, self._context) or ())
        finally:
            self._context.end()

    def _keys(self) -> Iterator[Any]:
        if self._keyed is None:
            return
        names = [state.name for state in self._keyed.registered_states()]
        for key in dict.fromkeys(key for name in names for key in self._keyed.get_keys(name)):
            self._keyed.set_current_key(key)
            yield key


def _environment(now_ms: Callable[[], int]) -> StateEnvironment:
    return StateEnvironment(
        storage=CheckpointStorage.open(f"memory://statecheck-{_NAME}"),
        now_ms=now_ms,
        operator_name=_NAME,
    )


def _task_info() -> TaskInfo:
    return TaskInfo(
        task_name=_NAME,
        index_of_this_subtask=0,
        number_of_parallel_subtasks=1,
        max_number_of_parallel_subtasks=_KEY_GROUPS,
    )


KEY_GROUPS = 16
OPERATOR = "totals"
"""The name of the operator in errors."""
ATTEMPT = AttemptRef(job_id=job_id_of("suite"), operator_id=operator_id_of("keyed"), epoch=1)
Handles = tuple[KeyedStateHandle, ...]


class KeyedHarness:
    """
    An operator with keyed state.

    :param backend: The state backend under test.
    :param storage: The storage of snapshots.
    :param key_types: The Arrow types of the key's columns, by default one string column.
    """

    def __init__(
        self, backend: StateBackend, storage: CheckpointStorage, key_types: Sequence[Any] | None = None
    ) -> None:
        types = [pa.string()] if key_types is None else key_types
        self.backend = backend
        self.storage = storage
        self.keys = KeySerializer(tuple(KeyField(f"k{index}", key_type) for index, key_type in enumerate(types)))
        self.now_ms = 1_000_000
        self.environment = StateEnvironment(storage=storage, now_ms=lambda: self.now_ms, operator_name=OPERATOR)
        self.queryable_names = TaskKvStateRegistry()
        self._checkpoint_id = 0
        self._opened: list[AbstractKeyedStateBackend] = []

    def open(
        self, restored: Sequence[KeyedStateHandle] = (), index: int = 0, parallelism: int = 1
    ) -> AbstractKeyedStateBackend:
        """Return the keyed state backend of a subtask."""
        key_groups = key_group_range_of(index, parallelism, KEY_GROUPS)
        return self.open_range(key_groups, restored)

    def open_range(
        self, key_groups: KeyGroupRange, restored: Sequence[KeyedStateHandle] = ()
    ) -> AbstractKeyedStateBackend:
        """Return the keyed state backend of a range of key groups."""
        opened = self.backend.create_keyed_state_backend(
            self.environment,
            ATTEMPT.job_id,
            ATTEMPT.operator_id,
            self.keys,
            KEY_GROUPS,
            key_groups,
            self.queryable_names,
            restored=tuple(restored),
        )
        self._opened.append(opened)
        return opened

    def streams(self) -> CheckpointStreamFactory:
        """Return the stream factory of the next snapshot, which writes all state to files."""
        self._checkpoint_id += 1
        writing = StateWriting(epoch=ATTEMPT.epoch, inline_threshold=0)
        view = FsCheckpointStorageAccess(self.storage, ATTEMPT, writing=writing)
        return view.resolve_checkpoint_storage_location(self._checkpoint_id, DEFAULT_LOCATION)

    def snapshot(self, backend: AbstractKeyedStateBackend) -> Any:
        """Return a snapshot that is not yet written."""
        streams = self.streams()
        return backend.snapshot(self._checkpoint_id, self.now_ms, streams)

    def save(self, backend: AbstractKeyedStateBackend) -> Handles:
        """Write a snapshot and return its handles, an empty tuple if there is no state."""
        handle = self.snapshot(backend).run().handle
        return () if handle is None else (handle,)

    def reopen(
        self, backends: Sequence[AbstractKeyedStateBackend], parallelism: int
    ) -> list[AbstractKeyedStateBackend]:
        """Return subtasks restored from snapshots of other subtasks."""
        return self.restore([self.snapshot(backend) for backend in backends], parallelism)

    def restore(self, snapshots: Sequence[Any], parallelism: int) -> list[AbstractKeyedStateBackend]:
        """Write snapshots and return the subtasks restored from them."""
        written = [snapshot.run().handle for snapshot in snapshots]
        handles = [() if handle is None else (handle,) for handle in written]
        assigned = redistribute_keyed(handles, parallelism, KEY_GROUPS)
        return [self.open(own, index, parallelism) for index, own in enumerate(assigned)]

    def reopened(self, backend: AbstractKeyedStateBackend) -> AbstractKeyedStateBackend:
        """Return the only subtask restored from a snapshot of another subtask."""
        (restored,) = self.reopen([backend], 1)
        return restored

    def owner_of(self, key: Any, backends: Sequence[AbstractKeyedStateBackend]) -> AbstractKeyedStateBackend:
        """Return the subtask that owns a key."""
        key_group = self.keys.key_group_of(key, KEY_GROUPS)
        (owner,) = (backend for backend in backends if key_group in backend.key_group_range)
        return owner

    def files(self) -> set[str]:
        """Return the files of all snapshots."""
        return set(self.storage.list_files(self.storage.base_uri))

    def close(self) -> None:
        """Dispose of all opened backends."""
        for backend in self._opened:
            backend.dispose()


class Concatenate:
    """Aggregate function that joins strings with commas."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[str]) -> str:
        return ",".join(accumulator)

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b


def all_descriptors() -> dict[str, Any]:
    """Return a descriptor of each kind of state."""
    return {
        "value": ValueStateDescriptor("value", int),
        "list": ListStateDescriptor("list", int),
        "reducing": ReducingStateDescriptor("reducing", lambda a, b: a + b, int),
        "aggregating": AggregatingStateDescriptor("aggregating", Concatenate(), list[str]),
        "folding": FoldingStateDescriptor("folding", ["start"], lambda acc, value: [*acc, value], list[str]),
        "map": MapStateDescriptor("map", str, int),
    }


def read_all(backend: Any) -> dict[str, Any]:
    """Return the values of the current key in each kind of state."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    return {
        "value": states["value"].value(),
        "list": list(states["list"].get()),
        "reducing": states["reducing"].get(),
        "aggregating": states["aggregating"].get(),
        "folding": states["folding"].get(),
        "map": {key: value for key, value in states["map"].entries()},  # noqa: C416 - entries, not pairs
    }


def write_all(backend: Any, number: int) -> None:
    """Write values for the current key to each kind of state."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    states["value"].update(number)
    states["list"].add_all([number, number + 1])
    states["reducing"].add(number)
    states["aggregating"].add(str(number))
    states["folding"].add(str(number))
    states["map"].put("number", number)


NOTHING: dict[str, Any] = {"value": None, "list": [], "reducing": None, "aggregating": None, "folding": None, "map": {}}


def written(number: int) -> dict[str, Any]:
    """Return the result of :func:`read_all` after :func:`write_all`."""
    return {
        "value": number,
        "list": [number, number + 1],
        "reducing": number,
        "aggregating": str(number),
        "folding": ["start", str(number)],
        "map": {"number": number},
    }
