"""Runs a user function with its state, without Spark and without files, so that it can be tested by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorSubtaskState
from airflow_provider_statecheck.state.backends.environment import StateEnvironment
from airflow_provider_statecheck.state.backends.memory_state_backend import MemoryStateBackend
from airflow_provider_statecheck.state.functions.flat_map_function import FlatMapFunction
from airflow_provider_statecheck.state.functions.keyed_context import KeyedContext
from airflow_provider_statecheck.state.functions.keyed_process_function import KeyedProcessFunction
from airflow_provider_statecheck.state.functions.lifecycle import FunctionLifecycle
from airflow_provider_statecheck.state.functions.map_function import as_map_function
from airflow_provider_statecheck.state.functions.overrides import wants_end_of_input
from airflow_provider_statecheck.state.functions.runtime_context import TaskInfo
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.memory_location import MemoryCheckpointStreamFactory

_KEY_GROUPS = 128
_MOST_STATE = 64 * 1024 * 1024
_NAME = "function"


class FunctionHarness:
    """
    One subtask with one function; elements go in, what it emits comes out, and a snapshot begins another harness.

    :param function: A ``MapFunction``, ``FlatMapFunction`` or ``KeyedProcessFunction`` that takes single elements, or a plain
        function.
    :param key: The type of the key, or a tuple of types for a key of several columns; without it there is no keyed state.
    :param restored: What ``snapshot`` of another harness gave.
    :param now_ms: Gives the time by which state expires, in milliseconds.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: Any = None,
        restored: OperatorSubtaskState | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        state = restored or OperatorSubtaskState()
        environment = _environment(now_ms)
        self._function = function
        self._operator = MemoryStateBackend().create_operator_state_backend(
            environment, _NAME, restored=state.managed_operator
        )
        self._keyed = None if key is None else _keyed_backend(environment, key, state)
        self._context: KeyedContext[Any] = KeyedContext()
        self._lifecycle = FunctionLifecycle(function, _task_info())
        self._lifecycle.initialize(
            is_restored=restored is not None,
            operator_state_store=self._operator,
            keyed_state_store=None if self._keyed is None else self._keyed.store,
        )

    def process(self, value: Any, *, key: Any = None, timestamp: int | None = None) -> list[Any]:
        """
        Give the function an element and return what it emits.

        :param value: The element.
        :param key: Its key, where there are keys.
        :param timestamp: Its time in milliseconds since 1970.
        """
        if self._keyed is not None:
            self._keyed.set_current_key(key)
        if isinstance(self._function, KeyedProcessFunction):
            return self._called(self._function.process_element, key, timestamp, value)
        if isinstance(self._function, FlatMapFunction):
            return list(self._function.flat_map(value))
        return [as_map_function(self._function).map(value)]

    def end_of_input(self) -> list[Any]:
        """End the input and return what the function emits for the keys that have state."""
        if not isinstance(self._function, KeyedProcessFunction) or not wants_end_of_input(self._function):
            return []
        emitted: list[Any] = []
        for key in self._keys():
            emitted += self._called(self._function.on_end_of_input, key, None)
        return emitted

    def snapshot(self, checkpoint_id: int = 1, timestamp: int = 0) -> OperatorSubtaskState:
        """
        Take a checkpoint and return the state in it.

        :param checkpoint_id: Its id.
        :param timestamp: When it was triggered, in milliseconds since 1970.
        :raises CheckpointException: for whatever ``snapshot_state`` raises.
        """
        streams = MemoryCheckpointStreamFactory(max_state_size=_MOST_STATE)
        raw = self._lifecycle.snapshot(checkpoint_id, timestamp, streams)
        operator = self._operator.snapshot(checkpoint_id, timestamp, streams).run().handle
        keyed = None if self._keyed is None else self._keyed.snapshot(checkpoint_id, timestamp, streams).run().handle
        return OperatorSubtaskState(
            managed_operator=() if operator is None else (operator,),
            raw_operator=raw,
            managed_keyed=() if keyed is None else (keyed,),
        )

    def close(self) -> None:
        """Close the function and give up its state."""
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
        subtask_index=0,
        parallelism=1,
        max_parallelism=_KEY_GROUPS,
        now_ms=now_ms,
        epoch=1,
    )


def _keyed_backend(environment: StateEnvironment, key: Any, state: OperatorSubtaskState) -> AbstractKeyedStateBackend:
    types = key if isinstance(key, tuple) else (key,)
    fields = tuple(KeyField(f"key_{place}", serializer_of(each).arrow_type) for place, each in enumerate(types))
    return MemoryStateBackend(max_state_size=_MOST_STATE).create_keyed_state_backend(
        environment,
        "job",
        _NAME,
        KeySerializer(fields),
        _KEY_GROUPS,
        KeyGroupRange(0, _KEY_GROUPS - 1),
        restored=state.managed_keyed,
    )


def _task_info() -> TaskInfo:
    return TaskInfo(
        task_name=_NAME,
        index_of_this_subtask=0,
        number_of_parallel_subtasks=1,
        max_number_of_parallel_subtasks=_KEY_GROUPS,
    )
