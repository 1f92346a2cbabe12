"""The task of a vertex as Spark calls it: what it reads, what it passes on, and its report."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL, ROWS_COLUMN
from airflow_provider_statecheck.spark.stages.executor.operator_run import OperatorTask, SnapshotMoment, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport, VertexTask
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Sum
from airflow_provider_statecheck.state.backends import MemoryStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64())])
SUMS = OperatorTask(
    uid="stage/sums",
    node=AggregateNode(uid="sums", aggregates={"total": Sum("v")}, emits_changes=True),
    output_schema=SCHEMA,
    key_serializer=KeySerializer((KeyField("id", pa.int64()),)),
)


def task_of(folder: Path, *operators: OperatorTask, **changes: Any) -> VertexTask:
    """Return the task of a vertex whose output the next vertex reads."""
    attempt = AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1)
    task = VertexTask(
        vertex=0,
        operators=operators,
        order=(KEY_GROUP_COLUMN,),
        output_schema=operators[-1].output_schema,
        is_last=False,
        has_control=False,
        sink=None,
        storage=CheckpointStorage.open(folder.as_uri()),
        attempt=attempt,
        config=CheckpointConfig(),
        moment=SnapshotMoment(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC))),
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
    assert {batch.schema for batch in task(iter(table.to_batches()))} == {task.passed_schema}
