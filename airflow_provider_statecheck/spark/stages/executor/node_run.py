"""Execution of one function in a Spark task: per element, with keyed state, or aggregated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import (
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.stages.executor.elements import (
    Elements,
    KeyedChunk,
    PackedRows,
    rows_of,
    times_of,
)
from airflow_provider_statecheck.spark.stages.planning import PlannedNode
from airflow_provider_statecheck.spark.tables.exact_values import arrow_table, exact_table
from airflow_provider_statecheck.state.functions.contexts import (
    BroadcastContext,
    BroadcastStates,
    KeyedBatchContext,
    KeyedContext,
    StateInitializationContext,
    TaskInfo,
)
from airflow_provider_statecheck.state.functions.user_functions import (
    FlatMapFunction,
    FunctionLifecycle,
    as_map_function,
    end_of_subtask,
    processes_batches,
    wants_end_of_input,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment, StateSize
from airflow_provider_statecheck.state.operator.states import raw_operator_state_inputs
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.stages.stage import MapNode, ProcessNode
    from airflow_provider_statecheck.state.functions.task_owned import TaskOwnedState
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory


_END_OF_INPUT_ELEMENTS = 10_000
"""Minimum number of elements, except in the last batch, that are emitted together at the end of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCapture:
    """Checkpoint for which the tasks of an increment save their state."""

    checkpoint: CheckpointMetaData
    """With id 0 for an increment without a checkpoint."""
    is_end_of_input: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask(PlannedNode):
    """A function and its initial state, for Spark tasks."""

    states: Mapping[int, OperatorSubtaskState] = field(default_factory=dict)
    """Initial state by subtask."""
    schemas: OperatorSchemas | None = None
    """Types of the initial state."""
    broadcast: tuple[bytes, ...] = ()
    """Packed rows of the broadcast input that the subtask sees before the rows of its keys."""
    restored_checkpoint_id: int | None = None
    """Checkpoint that saved the initial state, 0 for an increment without one; ``None`` if the function never ran."""

    @classmethod
    def of(cls, function: PlannedNode, **state: Any) -> Self:
        """
        Return the task of a planned function.

        :param state: Fields of the initial state, or others that replace those of the plan.
        """
        return cls(**{each.name: getattr(function, each.name) for each in fields(function)} | state)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskContext:
    """Properties of a subtask that all functions of its vertex share."""

    job_id: str
    subtask: int = 0
    parallelism: int
    max_parallelism: int
    now_ms: int
    """Time for the expiry of state, in milliseconds."""
    logical_date: datetime | None
    state_backend: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFunction:
    """State of one function that a Spark task has written."""

    state: OperatorState | None
    """State of this subtask; ``None`` if there is none."""
    new_bytes: int
    """Size of the state files that were written."""
    sizes: tuple[StateSize, ...] = ()
    """Sizes of single keyed states."""


class NodeRun:
    """
    Runs one function in a subtask.

    :param kv_registry: Registry of the queryable names of the functions of the subtask.
    :param task_owned_state: Files of the function's own.
    """

    def __init__(
        self,
        task: NodeTask,
        context: SubtaskContext,
        storage: CheckpointStorage,
        kv_registry: TaskKvStateRegistry,
        task_owned_state: TaskOwnedState,
    ) -> None:
        self.task = task
        self.context = context
        self._storage = storage
        self._kv_registry = kv_registry
        self._task_owned_state = task_owned_state
        self._restored = task.states.get(context.subtask, OperatorSubtaskState())
        self._operator_backend = context.state_backend.create_operator_state_backend(
            self._environment, task.operator_id, restored=self._restored.managed_operator
        )
        self._lifecycle = FunctionLifecycle(self.function, self._task_info)
        self._raw: tuple[Any, ...] = ()

    @property
    def function(self) -> Any:
        """The user's function with its lifecycle; ``None`` for declared aggregates."""
        return None

    @cached_property
    def keyed_backend(self) -> AbstractKeyedStateBackend | None:
        """The backend of keyed state; ``None`` without a key."""
        context, serializer = self.context, self.task.key_serializer
        if serializer is None:
            return None
        backend: AbstractKeyedStateBackend = context.state_backend.create_keyed_state_backend(
            self._environment,
            context.job_id,
            self.task.operator_id,
            serializer,
            context.max_parallelism,
            key_group_range_of(context.subtask, context.parallelism, context.max_parallelism),
            self._kv_registry,
            restored=self._restored.managed_keyed,
        )
        return backend

    @property
    def keyed(self) -> AbstractKeyedStateBackend:
        """
        The backend of keyed state.

        :raises CoordinatorError: if there is no key.
        """
        if self.keyed_backend is None:
            raise CoordinatorError(
                f"Expected key_by before {self.task.uid!r}, found none; add key_by to give elements a key."
            )
        return self.keyed_backend

    def open(self) -> None:
        """Restore the state and open the function."""
        keyed = self.keyed_backend
        context = StateInitializationContext(
            is_restored=self.task.restored_checkpoint_id is not None,
            operator_state_store=self._operator_backend,
            task_owned_state=self._task_owned_state,
            keyed_state_store=None if keyed is None else keyed.store,
            restored_checkpoint_id=self.task.restored_checkpoint_id,
            raw_operator_state=raw_operator_state_inputs(self._storage, self._restored.raw_operator),
        )
        self._lifecycle.initialize(context)

    def begin(self) -> Iterator[Elements]:
        """Process the broadcast input; yield its output."""
        return iter(())

    def process(self, elements: Elements) -> Elements:
        """Process elements without a key, in any order."""
        raise NotImplementedError

    def process_keyed(self, table: Any) -> Elements:
        """Process the elements of complete key groups, ordered by key group and key, with a key group column."""
        raise NotImplementedError

    def end(self) -> Iterator[Elements]:
        """Process the end of the input; yield the remaining output."""
        return iter(())

    def capture(self, moment: StateCapture, streams: CheckpointStreamFactory) -> None:
        """
        Call ``snapshot_state`` of the function.

        :raises CheckpointException: if the function fails.
        """
        self._raw = self._lifecycle.snapshot(moment.checkpoint, streams)

    def write_state(self, moment: StateCapture, streams: CheckpointStreamFactory) -> WrittenFunction:
        """Write the state of this subtask."""
        checkpoint = (moment.checkpoint.checkpoint_id, moment.checkpoint.timestamp_milliseconds, streams)
        operator = self._operator_backend.snapshot(*checkpoint).run()
        keyed = None if self.keyed_backend is None else self.keyed_backend.snapshot(*checkpoint).run()
        state = OperatorSubtaskState(
            managed_operator=() if operator.handle is None else (operator.handle,),
            raw_operator=self._raw,
            managed_keyed=() if keyed is None or keyed.handle is None else (keyed.handle,),
        )
        return WrittenFunction(
            state=self._as_operator_state(state) if state.has_state else None,
            new_bytes=operator.new_bytes + (0 if keyed is None else keyed.new_bytes),
            sizes=() if keyed is None else keyed.sizes,
        )

    def schemas(self) -> OperatorSchemas:
        """Return the types of the state."""
        keyed, serializer = self.keyed_backend, self.task.key_serializer
        return OperatorSchemas(
            key=None if serializer is None else serializer.snapshot(),
            keyed=() if keyed is None else keyed.schemas(),
            operator=self._operator_backend.schemas(),
        )

    @property
    def place(self) -> str:
        """Where the function is, for an error that it raised: its uid, and the key if one is in progress."""
        keyed = self.__dict__.get("keyed_backend")
        key = "" if keyed is None else keyed.key_in_progress
        return f"In the function {self.task.uid!r}{f', for the key {key}' if key else ''}"

    def close(self) -> None:
        """Close the function and release its state backends."""
        try:
            self._lifecycle.close()
        finally:
            self._operator_backend.dispose()
            if "keyed_backend" in self.__dict__ and self.keyed_backend is not None:
                self.keyed_backend.dispose()

    def _as_operator_state(self, state: OperatorSubtaskState) -> OperatorState:
        return OperatorState(
            operator_id=OperatorId(self.task.operator_id),
            uid=self.task.uid,
            parallelism=self.context.parallelism,
            max_parallelism=self.context.max_parallelism,
            subtask_states={self.context.subtask: state},
        )

    @property
    def _environment(self) -> StateEnvironment:
        context = self.context
        return StateEnvironment(
            storage=self._storage,
            now_ms=lambda: context.now_ms,
            schemas=self.task.schemas,
            operator_name=self.task.uid,
            subtask=context.subtask,
        )

    @property
    def _task_info(self) -> TaskInfo:
        return TaskInfo(
            task_name=self.task.uid,
            index_of_this_subtask=self.context.subtask,
            number_of_parallel_subtasks=self.context.parallelism,
            max_number_of_parallel_subtasks=self.context.max_parallelism,
            logical_date=self.context.logical_date,
        )


class FunctionRun(NodeRun):
    """Runs a function of the user."""

    @property
    @override
    def function(self) -> Any:
        return cast("MapNode | ProcessNode", self.task.node).function

    @override
    def process_keyed(self, table: Any) -> Elements:
        chunk = KeyedChunk.of(table, self.keyed.key_serializer)
        output = self._process_chunk(chunk)
        self.keyed.advance_to(chunk.last_key_group + 1)
        return output

    def _process_chunk(self, chunk: KeyedChunk) -> Elements:
        raise NotImplementedError

    def _output(self, values: Sequence[Any]) -> Elements:
        task = self.task
        return Elements(
            task.output_schema, values=values, is_case_sensitive=task.is_case_sensitive, zone=task.time_zone
        )


class MapRun(FunctionRun):
    """Runs a ``MapFunction`` or a ``FlatMapFunction``; directly after ``key_by`` it has keyed state."""

    @override
    def process(self, elements: Elements) -> Elements:
        return self._output(self._apply(elements.rows()))

    @override
    def _process_chunk(self, chunk: KeyedChunk) -> Elements:
        backend = self.keyed
        rows, output = rows_of(chunk.table), []
        for key, group, start, end in chunk.spans(backend.key_serializer):
            backend.set_current_key(key, group)
            output.extend(self._apply(rows[start:end]))
        backend.unset_current_key()
        return self._output(output)

    @override
    def end(self) -> Iterator[Elements]:
        yield self._output(end_of_subtask(self.function))

    @cached_property
    def _apply(self) -> Callable[[Iterable[Any]], list[Any]]:
        if isinstance(self.function, FlatMapFunction):
            flat_map = self.function.flat_map
            return lambda rows: [emitted for row in rows for emitted in flat_map(row)]
        function = as_map_function(self.function).map
        return lambda rows: [function(row) for row in rows]


class ProcessRun(FunctionRun):
    """Runs a ``KeyedProcessFunction`` on the elements of one key after the other, or on whole tables."""

    @override
    def open(self) -> None:
        super().open()
        self._broadcast_states  # noqa: B018 - registers them, so that a restore compares their types

    @override
    def begin(self) -> Iterator[Elements]:
        if not self.task.broadcast:
            return
        process, output = self.function.process_broadcast_element, list[Any]()
        context = BroadcastContext(self._broadcast_states, self.keyed.apply_to_all_keys)
        for packed in self.task.broadcast:
            for row in PackedRows.rows_of(packed):
                output.extend(process(row, context) or ())
        context.end()
        yield self._output(output)

    @override
    def _process_chunk(self, chunk: KeyedChunk) -> Elements:
        return self._process_batch(chunk) if processes_batches(self.function) else self._process_elements(chunk)

    @override
    def end(self) -> Iterator[Elements]:
        if wants_end_of_input(self.function):
            yield from self._end_of_keys()
        yield self._output(end_of_subtask(self.function))

    def _end_of_keys(self) -> Iterator[Elements]:
        output: list[Any] = []
        context: KeyedContext[Any] = KeyedContext(self._broadcast_states)
        for key in self._keys_with_state():
            self.keyed.set_current_key(key)
            context.begin(key)
            output.extend(self.function.on_end_of_input(context) or ())
            if len(output) >= _END_OF_INPUT_ELEMENTS:
                yield self._output(output)
                output = []
        context.end()
        self.keyed.unset_current_key()
        yield self._output(output)

    def _process_elements(self, chunk: KeyedChunk) -> Elements:
        backend, function = self.keyed, self.function.process_element
        # Backends that read from storage fetch the state of all keys of a chunk at once.
        self.keyed.prefetch(chunk.keys)
        context: KeyedContext[Any] = KeyedContext(self._broadcast_states)
        rows, times = rows_of(chunk.table), times_of(chunk.table, self.task.time_column)
        output: list[Any] = []
        for key, group, start, end in chunk.spans(backend.key_serializer):
            backend.set_current_key(key, group)
            context.begin(key)
            for position in range(start, end):
                if times is not None:
                    context.begin(key, times[position])
                emitted = function(rows[position], context)
                if emitted is not None:
                    output.extend(emitted)
        context.end()
        backend.unset_current_key()
        return self._output(output)

    def _process_batch(self, chunk: KeyedChunk) -> Elements:
        self._batch_context.keys = chunk.keys
        self._batch_context.begin_batch()
        try:
            table = self.function.process_batch(chunk.table, self._batch_context)
        finally:
            self._batch_context.end()
        if table is None or self.task.output_schema is None:
            return self._output([])
        return Elements(self.task.output_schema, table=self._require_output(table))

    def _require_output(self, found: Any) -> Any:
        schema = self.task.output_schema
        try:
            return exact_table(
                arrow_table(found), schema, is_case_sensitive=self.task.is_case_sensitive, zone=self.task.time_zone
            )
        except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
            raise InvalidConfigurationError(
                f"Expected process_batch of {self.task.uid!r} to return a table with the columns "
                f"{', '.join(f'{each.name} {each.type}' for each in schema)}, found: {error}; change the function or "
                "its output=."
            ) from error

    def _keys_with_state(self) -> Iterator[Any]:
        seen: set[Any] = set()
        names = [state.name for state in self.keyed.registered_states()]
        for name in names:
            for key in self.keyed.get_keys(name):
                if len(names) == 1:
                    yield key
                elif key not in seen:
                    seen.add(key)
                    yield key

    @cached_property
    def _batch_context(self) -> KeyedBatchContext:
        return KeyedBatchContext(self.keyed.batch_state, self._broadcast_states)

    @cached_property
    def _broadcast_states(self) -> BroadcastStates:
        return BroadcastStates(self._operator_backend, self.task.broadcast_states)
