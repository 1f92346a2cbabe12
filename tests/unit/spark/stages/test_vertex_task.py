"""The task of a vertex as Spark calls it: what it reads, what it passes on, and its report."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL, EMPTY_MESSAGE, ROWS_COLUMN, PackedRows
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport, VertexTask
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, MapNode, ProcessNode, Sum
from airflow_provider_statecheck.state.backends import MemoryStateBackend
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import (
    BoundedOneInput,
    CheckpointedFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64())])
SUMS = NodeTask(
    uid="stage/sums",
    node=AggregateNode(uid="sums", aggregates={"total": Sum("v")}, emits_changes=True),
    output_schema=SCHEMA,
    key_serializer=KeySerializer((KeyField("id", pa.int64()),)),
)


def task_of(folder: Path, *functions: NodeTask, **changes: Any) -> VertexTask:
    """Return the task of a vertex whose output the next vertex reads."""
    attempt = AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1)
    task = VertexTask(
        vertex=0,
        functions=functions,
        order=(KEY_GROUP_COLUMN,),
        output_schema=functions[-1].output_schema,
        is_last=False,
        has_control=False,
        sink=None,
        storage=CheckpointStorage.open(folder.as_uri()),
        attempt=attempt,
        config=CheckpointConfig(),
        moment=StateCapture(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC))),
        context=SubtaskContext(
            job_id=attempt.job_id,
            parallelism=1,
            max_parallelism=8,
            now_ms=0,
            logical_date=None,
            state_backend=MemoryStateBackend(),
        ),
    )
    return dataclasses.replace(task, **changes)


def run(task: VertexTask, table: Any) -> tuple[list[dict[str, Any]], TaskReport]:
    """Return the rows that a task passes on, and its report."""
    task = dataclasses.replace(task, columns=tuple(table.column_names))
    rows = [row for batch in task(iter(table.to_batches())) for row in batch.to_pylist()]
    messages = [row[CONTROL] for row in rows if row[CONTROL] is not None]
    return [row for row in rows if row[CONTROL] is None], TaskReport.decode(messages[-1])


def test_rows_that_spark_combined_count_as_many_as_they_were(tmp_path: Path) -> None:
    one_by_one = pa.table({"id": [1, 1, 2], "total": [5, 6, 7], KEY_GROUP_COLUMN: pa.array([0, 0, 1], pa.int32())})
    combined = pa.table(
        {"id": [1, 2], "total": [11, 7], ROWS_COLUMN: [2, 1], KEY_GROUP_COLUMN: pa.array([0, 1], pa.int32())}
    )
    found = [run(task_of(tmp_path, SUMS), table) for table in (one_by_one, combined)]
    assert [report.rows for _, report in found] == [3, 3]
    assert [[row["total"] for row in rows] for rows, _ in found] == [[11, 7], [11, 7]]


def test_rows_and_messages_have_one_schema_although_a_column_is_never_null(tmp_path: Path) -> None:
    count = pa.schema([("id", pa.int64()), pa.field("total", pa.int64(), nullable=False)])
    task = task_of(tmp_path, dataclasses.replace(SUMS, output_schema=count))
    table = pa.table({"id": [1], "total": [5], KEY_GROUP_COLUMN: pa.array([0], pa.int32())})
    task = dataclasses.replace(task, columns=tuple(table.column_names))
    assert {batch.schema for batch in task(iter(table.to_batches()))} == {task.passed_schema}


class Held(FlatMapFunction[Any, Any], CheckpointedFunction, BoundedOneInput):
    """Holds all elements until the end of the input."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", int))
        self.held = list(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.held)

    def flat_map(self, value: Any) -> Any:
        self.held.append(value.id)
        return ()

    def end_input(self) -> Any:
        emitted, self.held = self.held, []
        return [(each, 1) for each in emitted]


def doubled(value: Any) -> Any:
    return value[0], 2 * value[1]


HELD = NodeTask(uid="stage/held", node=MapNode(uid="held", function=Held()), output_schema=SCHEMA)
DOUBLED = NodeTask(uid="stage/doubled", node=MapNode(uid="doubled", function=doubled), output_schema=SCHEMA)


def moment(*, is_end: bool) -> StateCapture:
    return StateCapture(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC)), is_end_of_input=is_end)


def test_end_of_the_input_passes_the_following_functions_and_is_in_the_state(tmp_path: Path) -> None:
    data, message = pa.table({"id": [7, 8]}), pa.table({"id": pa.nulls(1, pa.int64()), CONTROL: [EMPTY_MESSAGE]})
    begun = task_of(tmp_path, HELD, DOUBLED, order=(), moment=moment(is_end=False))
    emitted, report = run(begun, data)
    (state,) = report.states
    assert emitted == []
    assert state.subtask_states[0].managed_operator
    # The last increment has no rows for this subtask, which Spark runs with a message alone.
    restored = dataclasses.replace(HELD, states=state.subtask_states, restored_checkpoint_id=1)
    ended = task_of(tmp_path, restored, DOUBLED, order=(), moment=moment(is_end=True), has_control=True)
    emitted, report = run(ended, message)
    assert [(row["id"], row["total"]) for row in emitted] == [(7, 2), (8, 2)]
    offsets = [
        meta.offsets for s in report.states for h in s.subtask_states[0].managed_operator for _, meta in h.states
    ]
    assert [len(each) for each in offsets] in ([], [0])
    assert report.rows == 0


class Failing(KeyedProcessFunction[Any, Any, Any]):
    """Fails at one of its keys."""

    def process_element(self, value: Any, context: Any) -> Any:
        if value.id == 2:
            raise ZeroDivisionError("no total")
        yield value.id, value.total


FAILING = NodeTask(
    uid="stage/failing",
    node=ProcessNode(uid="failing", function=Failing(), output="id long, total long"),
    output_schema=SCHEMA,
    key_serializer=KeySerializer((KeyField("id", pa.int64()),)),
)


class FailingFirst(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    """Fails at its broadcast input."""

    def process_broadcast_element(self, value: Any, context: Any) -> Any:
        raise ZeroDivisionError(value.rate)

    def process_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""


def test_an_error_at_the_broadcast_input_has_the_uid_of_its_function(tmp_path: Path) -> None:
    packed = next(PackedRows(("rate",), 10_000)([pa.record_batch({"0": [3]})])).column("rows")[0].as_py()
    failing = dataclasses.replace(
        FAILING,
        node=ProcessNode(uid="failing", function=FailingFirst(), output="id long, total long"),
        broadcast=(packed,),
        broadcast_states=(MapStateDescriptor("rates", str, int),),
    )
    table = pa.table({KEY_GROUP_COLUMN: pa.array([0], pa.int32()), "id": [1], "total": [10]})
    with pytest.raises(ZeroDivisionError, match="3") as error:
        run(task_of(tmp_path, failing), table)
    assert error.value.__notes__[0].startswith("In the function 'stage/failing'")


def test_an_error_of_a_function_has_its_uid_and_the_key(tmp_path: Path) -> None:
    table = pa.table({KEY_GROUP_COLUMN: pa.array([0, 0], pa.int32()), "id": [1, 2], "total": [10, 20]})
    with pytest.raises(ZeroDivisionError, match="no total") as error:
        run(task_of(tmp_path, FAILING), table)
    assert error.value.__notes__ == ["In the function 'stage/failing', for the key 2"]
    mapped = NodeTask(
        uid="stage/map", node=MapNode(uid="map", function=lambda row: row.nothing, output=None), output_schema=SCHEMA
    )
    with pytest.raises(AttributeError, match="Expected one of the columns id, total") as wrong_name:
        run(task_of(tmp_path, mapped, order=()), table.drop_columns([KEY_GROUP_COLUMN]))
    assert wrong_name.value.__notes__ == ["In the function 'stage/map'"]


@pytest.mark.parametrize(
    ("emitted", "fits"), [((1, 2), True), ((1, "x"), False), ((1, 2, 3), False), ({"ID2": 1}, False)]
)
def test_declared_output_is_checked_without_a_sink_too(tmp_path: Path, emitted: Any, fits: bool) -> None:
    node = MapNode(uid="map", function=lambda row: emitted, output="id long, total long")
    task = task_of(tmp_path, NodeTask(uid="stage/map", node=node, output_schema=SCHEMA), order=(), is_last=True)
    with nullcontext() if fits else pytest.raises(UnsupportedStateError, match="Expected elements with the columns"):
        run(task, pa.table({"id": [1], "total": [10]}))


def test_output_that_is_not_declared_and_not_read_is_free(tmp_path: Path) -> None:
    node = MapNode(uid="map", function=lambda row: None, output=None)
    task = task_of(tmp_path, NodeTask(uid="stage/map", node=node, output_schema=SCHEMA), order=(), is_last=True)
    run(task, pa.table({"id": [1], "total": [10]}))
