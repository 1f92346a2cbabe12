"""Test harness for user functions with state, without Spark and without files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.options import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.backends.loading import backend_of_stage
from airflow_provider_statecheck.state.backends.state_backend import StateBackend, StateEnvironment
from airflow_provider_statecheck.state.functions.contexts import KeyedContext, TaskInfo
from airflow_provider_statecheck.state.functions.lifecycle import FunctionLifecycle, wants_end_of_input
from airflow_provider_statecheck.state.functions.user_functions import (
    FlatMapFunction,
    KeyedProcessFunction,
    as_map_function,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.operator.raw_state import raw_operator_state_inputs
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.memory_storage import MemoryCheckpointStreamFactory

_KEY_GROUPS = 128
_MOST_STATE = 64 * 1024 * 1024
_NAME = "function"


class FunctionHarness:
    """
    Runs one function in one subtask.

    ``process`` passes an element and returns the emitted values. ``snapshot`` returns the state, from which another harness
    can be restored.

    :param function: A ``MapFunction``, a ``FlatMapFunction`` or a ``KeyedProcessFunction`` of single elements, or a plain
        function.
    :param key: The type of the key, or a tuple of types for a key with several columns; ``None`` for no keyed state.
    :param restored: The result of ``snapshot`` of another harness.
    :param now_ms: A function that returns the time for the expiry of state, in milliseconds.
    :param state_backend: The state backend or its name, by default the default backend of a stage.
    :param snapshot_between_calls: Whether each call of ``process`` is a separate increment: the state is saved, the function
        is closed, and a copy of the function is restored from the state. Values outside of state are lost.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: Any = None,
        restored: OperatorSubtaskState | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        state_backend: StateBackend | str | None = None,
        snapshot_between_calls: bool = False,
    ) -> None:
        self._given = function
        self._key = key
        self._environment = _environment(now_ms)
        self._state_backend = backend_of_stage(state_backend, {})
        self._snapshot_between_calls = snapshot_between_calls
        self._context: KeyedContext[Any] = KeyedContext()
        self._begin(restored)

    def process(self, value: Any, *, key: Any = None, timestamp: int | None = None) -> list[Any]:
        """
        Process an element and return the emitted values.

        :param value: The element.
        :param key: The key of the element, for keyed functions.
        :param timestamp: The timestamp of the element, in milliseconds since 1970.
        """
        emitted = self._processed(value, key, timestamp)
        if self._snapshot_between_calls:
            saved = self.snapshot()
            self.close()
            self._begin(saved)
        return emitted

    def end_of_input(self) -> list[Any]:
        """End the input and return the values emitted for the keys with state."""
        if not isinstance(self._function, KeyedProcessFunction) or not wants_end_of_input(self._function):
            return []
        emitted: list[Any] = []
        for key in self._keys():
            emitted += self._called(self._function.on_end_of_input, key, None)
        return emitted

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
        self._lifecycle.initialize(
            is_restored=restored is not None,
            operator_state_store=self._operator,
            keyed_state_store=None if self._keyed is None else self._keyed.store,
            raw_operator_state=raw_operator_state_inputs(self._environment.storage, state.raw_operator),
        )

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
        subtask_index=0,
        parallelism=1,
        max_parallelism=_KEY_GROUPS,
        now_ms=now_ms,
        epoch=1,
        operator_name=_NAME,
    )


def _task_info() -> TaskInfo:
    return TaskInfo(
        task_name=_NAME,
        index_of_this_subtask=0,
        number_of_parallel_subtasks=1,
        max_number_of_parallel_subtasks=_KEY_GROUPS,
    )
