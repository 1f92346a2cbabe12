"""
One Spark task of a vertex: its description, its chain of functions, and its report.

A task reads data and messages of the vertex before it, runs its functions, saves their state, and passes on data or
writes it to the sink. Its last message is its report for the driver.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.handles import (
    OperatorState,
    OperatorSubtaskState,
    StreamStateHandle,
    streams_of_subtask,
)
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.stages.executor.aggregate_run import AggregateRun
from airflow_provider_statecheck.spark.stages.executor.elements import (
    CONTROL,
    EMPTY_MESSAGE,
    ROWS_COLUMN,
    Elements,
    tables_by_key_group,
)
from airflow_provider_statecheck.spark.stages.executor.node_run import (
    MapRun,
    NodeRun,
    NodeTask,
    ProcessRun,
    StateCapture,
    SubtaskContext,
    WrittenFunction,
)
from airflow_provider_statecheck.spark.stages.executor.split_input import partition_number
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, MapNode
from airflow_provider_statecheck.state.functions.task_owned import TaskOwnedState
from airflow_provider_statecheck.state.keyed.abstract_backend import StateSize
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories, load_checkpoint_storage
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStorageWorkerView,
    FileMergingSnapshotManager,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.sink import Sink, SinkWriter
    from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
    from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Result of one Spark task of a vertex."""

    vertex: int
    subtask: int
    states: tuple[OperatorState, ...] = ()
    """State of the functions, with this subtask only; functions without state are omitted."""
    committables: tuple[dict[str, Any], ...] = ()
    """Committables of the sink writer."""
    keys: int = 0
    """Number of keys of declared aggregates, summed over the tables that were processed."""
    rows: int = 0
    """Number of input elements, before Spark combined any."""
    new_bytes: int = 0
    """Size of the state files that were written."""
    sizes: dict[str, tuple[StateSize, ...]] = field(default_factory=dict)
    """Sizes of single states of this subtask by the uids of the functions, for display."""
    snapshot_seconds: float = 0.0
    """Time to write the state."""

    def encode(self) -> bytes:
        """Return the report as JSON."""
        return json.dumps(encode(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a report."""
        return decode(cls, json.loads(data))


def worker_view(
    storage: CheckpointStorage,
    attempt: AttemptRef,
    config: CheckpointConfig,
    restored: Iterable[OperatorSubtaskState],
) -> CheckpointStorageWorkerView:
    """
    Return the view that a subtask has of the checkpoint storage.

    :param config: Settings of the checkpoint storage.
    :param restored: Initial state of the subtask.
    :raises InvalidConfigurationError: if the configured storage cannot be loaded.
    """
    manager = FileMergingSnapshotManager(attempt.epoch, config) if config.file_merging_enabled else None
    view = load_checkpoint_storage(storage, attempt, config)
    return view.to_file_merging_storage(manager, _Restored(tuple(restored)))


@dataclass(frozen=True, slots=True)
class _Restored:
    """Environment of a subtask with its initial state."""

    states: tuple[OperatorSubtaskState, ...]

    @property
    def restored_streams(self) -> Iterator[StreamStateHandle]:
        return (stream for state in self.states for stream in streams_of_subtask(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexTask:
    """
    The work of one vertex in one increment; Spark pickles it and calls it with the record batches of each task.

    Only reports of successful tasks count. Files of failed or speculative tasks are orphans.
    """

    vertex: int
    functions: tuple[NodeTask, ...]
    order: tuple[str, ...]
    """Columns that order the elements of a key, the key group first; empty for a vertex without a key."""
    output_schema: Any
    """Arrow schema of the output of the last function, for the next vertex or the sink."""
    is_last: bool
    has_control: bool
    """Whether the input includes messages."""
    sink: Sink | None
    storage: CheckpointStorage
    attempt: AttemptRef
    config: CheckpointConfig
    """Settings of the checkpoint storage."""
    moment: StateCapture
    context: SubtaskContext
    """Properties of its subtasks; each Spark task sets its index."""
    columns: tuple[str, ...] = ()
    """Names of the columns of the input, which Spark sends under positional names."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the task; yield data for the next vertex, and messages for the driver."""
        subtask = partition_number()
        named = (batch.rename_columns(list(self.columns)) for batch in batches)
        task_input = _TaskInput(named, has_control=self.has_control)
        view = self._view(subtask)
        own = TaskOwnedState(view, self.storage, OperatorDirectories(self.storage, self.attempt).taskowned)
        with ExitStack() as closing:
            chain = FunctionChain(self.functions, replace(self.context, subtask=subtask), self.storage, own)
            closing.callback(chain.close)
            chain.open()
            writer = self._writer(subtask)
            if writer is not None:
                closing.push(lambda kind, *_: writer.abort() if kind else None)
            for elements in self._process(chain, task_input):
                if writer is not None and len(elements):
                    writer.write(elements.table())
                elif not self.is_last:
                    yield from self._data_batches(elements)
                elif self._declares_output and len(elements):
                    elements.table()  # finds rows that do not fit output=, as a sink would
            report = self._report(subtask, view, chain, task_input, writer)
        yield self._message_batch([*task_input.messages, report.encode()])

    @property
    def _declares_output(self) -> bool:
        return bool(self.functions) and getattr(self.functions[-1].node, "output", None) is not None

    def _process(self, chain: FunctionChain, task_input: _TaskInput) -> Iterator[Elements]:
        yield from chain.begin()
        yield from chain.process(task_input.batches(), self.order)
        if self.moment.is_end_of_input:
            yield from chain.end()

    def _view(self, subtask: int) -> CheckpointStorageWorkerView:
        restored = (function.states[subtask] for function in self.functions if subtask in function.states)
        return worker_view(self.storage, self.attempt, self.config, restored)

    def _report(
        self,
        subtask: int,
        view: CheckpointStorageWorkerView,
        chain: FunctionChain,
        task_input: _TaskInput,
        writer: SinkWriter | None,
    ) -> TaskReport:
        report = saved_state(chain, view, self.moment, vertex=self.vertex, subtask=subtask, rows=task_input.rows)
        return report if writer is None else replace(report, committables=tuple(writer.prepare_commit()))

    def _writer(self, subtask: int) -> SinkWriter | None:
        if self.sink is None or not self.is_last:
            return None
        from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext

        return self.sink.writer(
            SinkTaskContext(
                subtask=subtask, epoch=self.attempt.epoch, task_id=uuid.uuid4().hex, schema=self.output_schema
            )
        )

    def _data_batches(self, elements: Elements) -> Iterator[Any]:
        table = elements.table()
        control = pa.nulls(table.num_rows, pa.binary())
        columns = [*table.columns, control]
        yield from pa.Table.from_arrays(columns, schema=self.passed_schema).to_batches()

    def _message_batch(self, messages: list[bytes]) -> Any:
        empty = [pa.nulls(len(messages), field.type) for field in self._passed_fields]
        return pa.RecordBatch.from_arrays([*empty, pa.array(messages, pa.binary())], schema=self.passed_schema)

    @property
    def passed_schema(self) -> Any:
        """Arrow schema of data and messages. All columns can be null, because messages have no data."""
        return pa.schema([*self._passed_fields, pa.field(CONTROL, pa.binary())])

    @property
    def _passed_fields(self) -> list[Any]:
        return [] if self.is_last else [field.with_nullable(True) for field in self.output_schema]


class _TaskInput:
    """Separates the data of a task from the messages of the vertex before it."""

    def __init__(self, batches: Iterable[Any], *, has_control: bool) -> None:
        self._batches = batches
        self._has_control = has_control
        self.messages: list[bytes] = []
        self.rows = 0

    def batches(self) -> Iterator[Any]:
        """Yield the data; all messages are available at the end."""
        for batch in self._batches:
            data = self._without_messages(batch) if self._has_control else batch
            if data.num_rows:
                yield self._counted(data)

    def _counted(self, batch: Any) -> Any:
        if ROWS_COLUMN not in batch.schema.names:
            self.rows += batch.num_rows
            return batch
        self.rows += pc.sum(batch.column(ROWS_COLUMN)).as_py()
        return batch.drop_columns([ROWS_COLUMN])

    def _without_messages(self, batch: Any) -> Any:
        control = batch.column(CONTROL)
        if control.null_count < len(control):
            self.messages.extend(message for message in control.drop_null().to_pylist() if message != EMPTY_MESSAGE)
            batch = batch.filter(pc.is_null(control))
        return batch.drop_columns([CONTROL])


def saved_state(
    chain: FunctionChain,
    view: CheckpointStorageWorkerView,
    moment: StateCapture,
    *,
    vertex: int,
    subtask: int,
    rows: int,
) -> TaskReport:
    """
    Write the state of a chain of functions, and return the report of its task.

    :param rows: Number of input elements of the task.
    """
    begin = time.monotonic()
    streams = view.resolve_checkpoint_storage_location(moment.checkpoint.checkpoint_id, DEFAULT_LOCATION)
    written = chain.write_state(moment, streams)
    states = view.make_durable(each.state for each in written.values() if each.state is not None)
    return TaskReport(
        vertex=vertex,
        subtask=subtask,
        states=states,
        rows=rows,
        keys=chain.keys,
        new_bytes=sum(each.new_bytes for each in written.values()),
        sizes={uid: each.sizes for uid, each in written.items() if each.sizes},
        snapshot_seconds=time.monotonic() - begin,
    )


class FunctionChain:
    """
    Runs the functions of one Spark task.

    :param tasks: The functions in order; may be empty.
    :param task_owned_state: Files of the functions' own.
    :param kv_registry: Registry of the queryable names of their states; by default one of these functions alone.
    """

    def __init__(
        self,
        tasks: Iterable[NodeTask],
        context: SubtaskContext,
        storage: CheckpointStorage,
        task_owned_state: TaskOwnedState,
        kv_registry: TaskKvStateRegistry | None = None,
    ) -> None:
        registry = kv_registry or TaskKvStateRegistry()
        self._runs = [_run_type(task)(task, context, storage, registry, task_owned_state) for task in tasks]

    def open(self) -> None:
        """Restore the state and open the functions, the last one first, so that each finds the next one open."""
        for run in reversed(self._runs):
            run.open()

    def begin(self) -> Iterator[Elements]:
        """Process broadcast inputs; yield the output of the last function."""
        for position, run in enumerate(self._runs):
            for elements in _begun(run):
                yield self._process_from(position + 1, elements)

    def process(self, batches: Iterable[Any], order: tuple[str, ...]) -> Iterator[Elements]:
        """
        Process record batches; yield the output of the last function.

        :param order: Columns that order the elements of a key, the key group first; empty without a key.
        """
        if not order:
            for batch in batches:
                yield self._process_from(0, _elements(batch))
            return
        for table in tables_by_key_group(batches, order):
            with _placed(self._runs[0]):
                first = self._runs[0].process_keyed(table)
            yield self._process_from(1, first)

    def add(self, table: Any) -> None:
        """Let the first function process elements of any key groups, in any order, for which it emits nothing."""
        with _placed(self._runs[0]):
            self._runs[0].process_keyed(table)

    def end(self) -> Iterator[Elements]:
        """Process the end of the input in each function; yield the output of the last function."""
        for position, run in enumerate(self._runs):
            for elements in _ended(run):
                yield self._process_from(position + 1, elements)

    @property
    def keys(self) -> int:
        """Number of keys of declared aggregates."""
        return sum(run.keys for run in self._runs if isinstance(run, AggregateRun))

    def write_state(self, moment: StateCapture, streams: CheckpointStreamFactory) -> dict[str, WrittenFunction]:
        """
        Save the state of all functions: call ``snapshot_state`` of each of them, then write their state.

        :return: The written states of this subtask, by the uids of the functions.
        """
        for run in self._runs:
            run.capture(moment, streams)
        return {run.task.uid: run.write_state(moment, streams) for run in self._runs}

    def schemas(self) -> dict[str, OperatorSchemas]:
        """Return the types of all state, by the uids of the functions."""
        return {run.task.uid: run.schemas() for run in self._runs}

    def close(self) -> None:
        """Close all functions, even if closing one of them fails."""
        with ExitStack() as closing:
            for run in self._runs:
                closing.callback(run.close)

    def _process_from(self, position: int, elements: Elements) -> Elements:
        for run in self._runs[position:]:
            with _placed(run):
                elements = run.process(elements)
        return elements


@contextmanager
def _placed(run: NodeRun) -> Iterator[None]:
    """Add to an error of the user's function where it was raised; the driver logs it with the error."""
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        error.add_note(run.place)
        raise


def _begun(run: NodeRun) -> Iterator[Elements]:
    with _placed(run):
        yield from run.begin()


def _ended(run: NodeRun) -> Iterator[Elements]:
    with _placed(run):
        yield from run.end()


def _run_type(task: NodeTask) -> type[NodeRun]:
    if isinstance(task.node, MapNode):
        return MapRun
    return AggregateRun if isinstance(task.node, AggregateNode) else ProcessRun


def _elements(batch: Any) -> Elements:
    table = pa.Table.from_batches([batch])
    return Elements(table.schema, table=table)
