"""The functions of a vertex, each given what the one before gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.spark.stages.executor.aggregate_run import AggregateRun
from airflow_provider_statecheck.spark.stages.executor.columns import KEY_GROUP
from airflow_provider_statecheck.spark.stages.executor.control import SnapshotMoment
from airflow_provider_statecheck.spark.stages.executor.elements import Elements
from airflow_provider_statecheck.spark.stages.executor.keyed_chunk import KeyedChunk
from airflow_provider_statecheck.spark.stages.executor.map_run import MapRun
from airflow_provider_statecheck.spark.stages.executor.operator_run import OperatorRun
from airflow_provider_statecheck.spark.stages.executor.operator_task import OperatorTask, TaskPlace
from airflow_provider_statecheck.spark.stages.executor.process_run import ProcessRun
from airflow_provider_statecheck.spark.stages.executor.sorting import KeyGroupSorter
from airflow_provider_statecheck.spark.stages.executor.streams import TaskStreams
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, MapNode

if TYPE_CHECKING:
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
