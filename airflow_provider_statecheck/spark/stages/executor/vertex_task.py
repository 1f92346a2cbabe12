"""One Spark task of a vertex: a chain of functions."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.spark.stages.executor.elements import (
    CONTROL,
    EMPTY_MESSAGE,
    KEY_GROUP,
    Elements,
    KeyedChunk,
    KeyGroupSorter,
)
from airflow_provider_statecheck.spark.stages.executor.operator_run import AggregateRun, MapRun, OperatorRun, ProcessRun
from airflow_provider_statecheck.spark.stages.executor.task_control import (
    OperatorTask,
    SnapshotMoment,
    TaskPlace,
    TaskReport,
    TaskStorage,
    TaskStreams,
)
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, MapNode
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkWriter
    from airflow_provider_statecheck.state.schemas import OperatorSchemas
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class FunctionChain:
    """
    Runs the functions of one task.

    :param tasks: The functions, in their order; there may be none.
    :param place: Where they run.
    :param storage: From which their state is read.
    """

    def __init__(self, tasks: Iterable[OperatorTask], place: TaskPlace, storage: CheckpointStorage) -> None:
        self._runs = [_run_of(task)(task, place, storage) for task in tasks]

    def open(self) -> None:
        """Restore the states and open the functions, the last one first, so that each finds its reader ready."""
        for run in reversed(self._runs):
            run.open()

    def process(self, batches: Iterable[Any], order: tuple[str, ...]) -> Iterator[Elements]:
        """
        Give what the last function makes of some record batches.

        :param order: By which columns elements of a key are ordered, the key group first; nothing without a key.
        """
        if not order:
            for batch in batches:
                yield self._onward(0, _elements(batch))
            return
        first = self._runs[0]
        for table in KeyGroupSorter(KEY_GROUP, order).tables(batches):
            yield self._onward(1, _keyed(first, table))

    def end(self) -> Iterator[Elements]:
        """Give what each function has left at the end of the input, through those behind it."""
        for position, run in enumerate(self._runs):
            for elements in run.end():
                yield self._onward(position + 1, elements)

    @property
    def keys(self) -> int:
        """Return how many keys declared aggregates had."""
        return sum(run.keys for run in self._runs if isinstance(run, AggregateRun))

    def snapshot(self, moment: SnapshotMoment, streams: TaskStreams) -> tuple[tuple[OperatorState, ...], int]:
        """
        Save the state of all functions: first all of them are asked to bring it up to date, then it is written.

        :return: The states of this subtask, and how many bytes are new.
        """
        for run in self._runs:
            run.capture(moment, streams)
        written = [run.snapshot(moment, streams) for run in self._runs]
        return tuple(state for state, _ in written if state is not None), sum(size for _, size in written)

    def schemas(self) -> dict[str, OperatorSchemas]:
        """Return the types of all state by the uid of its operator."""
        return {run.task.uid: run.schemas() for run in self._runs}

    def close(self) -> None:
        """Close the functions, all of them although one fails."""
        with ExitStack() as closing:
            for run in self._runs:
                closing.callback(run.close)

    def _onward(self, position: int, elements: Elements) -> Elements:
        for run in self._runs[position:]:
            elements = run.process(elements)
        return elements


def _run_of(task: OperatorTask) -> type[OperatorRun]:
    if isinstance(task.node, MapNode):
        return MapRun
    return AggregateRun if isinstance(task.node, AggregateNode) else ProcessRun


def _keyed(run: OperatorRun, table: Any) -> Elements:
    if isinstance(run, AggregateRun):
        return run.process_table(table)
    return run.process_keyed(KeyedChunk.of(table, run.keyed.key_serializer))


def _elements(batch: Any) -> Elements:
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    return Elements(table.schema, table=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexTask:
    """
    The work of one vertex in one increment; it goes to Spark's tasks by pickling and is called with their record batches.

    A task that fails or loses against its copy leaves files that nothing names: only what winners report is counted.
    """

    vertex: int
    operators: tuple[OperatorTask, ...]
    order: tuple[str, ...]
    """Columns by which elements are ordered behind a key, the key group first; empty in front of the first key."""
    output_schema: Any
    """Of what the last function gives, as far as it goes on to another vertex or to the sink."""
    is_last: bool
    has_control: bool
    """Whether messages of the vertex before are among the elements."""
    sink: Sink | None
    state_directory: str
    """Below it each subtask has a directory."""
    storage: TaskStorage
    data_inline_threshold: int
    moment: SnapshotMoment
    job_id: str
    parallelism: int
    max_parallelism: int
    epoch: int
    now_ms: int
    logical_date: Any
    state_backend: Any

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the task and give what goes on: elements of the next vertex, and reports for the driver."""
        subtask = _subtask()
        storage = self.storage.open()
        inbox = _Inbox(batches, has_control=self.has_control)
        with ExitStack() as closing:
            chain = FunctionChain(self.operators, self._place(subtask), storage)
            closing.callback(chain.close)
            chain.open()
            writer = self._writer(subtask)
            if writer is not None:
                closing.push(lambda kind, *_: writer.abort() if kind else None)
            for elements in self._work(chain, inbox):
                if writer is not None and len(elements):
                    writer.write(elements.table())
                elif not self.is_last:
                    yield from self._data(elements)
            report = self._report(subtask, chain, storage, inbox, writer)
        yield from self._messages([*inbox.messages, report.encode()])

    def _work(self, chain: FunctionChain, inbox: _Inbox) -> Iterator[Elements]:
        yield from chain.process(inbox.batches(), self.order)
        if self.moment.is_end_of_input:
            yield from chain.end()

    def _report(
        self, subtask: int, chain: FunctionChain, storage: Any, inbox: _Inbox, writer: SinkWriter | None
    ) -> TaskReport:
        streams = TaskStreams(
            storage,
            f"{self.state_directory}/keyed-{subtask}",
            StateWriting(epoch=self.epoch, inline_threshold=self.data_inline_threshold),
        )
        states, new_bytes = chain.snapshot(self.moment, streams)
        return TaskReport(
            vertex=self.vertex,
            subtask=subtask,
            states=states,
            committables=() if writer is None else tuple(writer.prepare_commit()),
            rows=inbox.rows,
            keys=chain.keys,
            new_bytes=new_bytes,
        )

    def _writer(self, subtask: int) -> SinkWriter | None:
        if self.sink is None or not self.is_last:
            return None
        from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext

        return self.sink.writer(
            SinkTaskContext(subtask=subtask, epoch=self.epoch, task_id=uuid.uuid4().hex, schema=self.output_schema)
        )

    def _place(self, subtask: int) -> TaskPlace:
        return TaskPlace(
            job_id=self.job_id,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            epoch=self.epoch,
            now_ms=self.now_ms,
            logical_date=self.logical_date,
            state_backend=self.state_backend,
        )

    def _data(self, elements: Elements) -> Iterator[Any]:
        import pyarrow as pa

        table = elements.table()
        control = pa.nulls(table.num_rows, pa.binary())
        yield from table.append_column(CONTROL, control).to_batches()

    def _messages(self, messages: list[bytes]) -> Iterator[Any]:
        import pyarrow as pa

        fields = [] if self.is_last else list(self.output_schema)
        empty = [pa.nulls(len(messages), field.type) for field in fields]
        schema = pa.schema([*(field.with_nullable(True) for field in fields), pa.field(CONTROL, pa.binary())])
        yield pa.RecordBatch.from_arrays([*empty, pa.array(messages, pa.binary())], schema=schema)


class _Inbox:
    """Sorts the messages of the vertex before out of what arrives."""

    def __init__(self, batches: Iterable[Any], *, has_control: bool) -> None:
        self._batches = batches
        self._has_control = has_control
        self.messages: list[bytes] = []
        self.rows = 0

    def batches(self) -> Iterator[Any]:
        """Give the elements; afterwards the messages are all there."""
        for batch in self._batches:
            data = self._without_messages(batch) if self._has_control else batch
            if data.num_rows:
                self.rows += data.num_rows
                yield data

    def _without_messages(self, batch: Any) -> Any:
        import pyarrow.compute as pc

        control = batch.column(CONTROL)
        if control.null_count < len(control):
            self.messages.extend(message for message in control.drop_null().to_pylist() if message != EMPTY_MESSAGE)
            batch = batch.filter(pc.is_null(control))
        return batch.drop_columns([CONTROL])


def _subtask() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
