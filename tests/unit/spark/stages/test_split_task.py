"""Tasks of a job over many increments: each commits the partial results of its partition under names of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.split_input import INCREMENT_COLUMN, SentRows
from airflow_provider_statecheck.spark.stages.executor.split_task import SplitReport, SplitTask
from airflow_provider_statecheck.spark.stages.planning import PlannedNode
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, Max, Sum
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.spark.stages.test_functions import run_of

KEYS, GROUPS = 1_000, 128
SERIALIZER = KeySerializer((KeyField("id", pa.int64()),))
OUTPUT = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("n", pa.int64()), ("top", pa.int64())])
NODE = AggregateNode(uid="sums", aggregates={"total": Sum("v"), "n": Count(), "top": Max("v")})
FUNCTION = PlannedNode(uid="stage/sums", node=NODE, output_schema=OUTPUT, key_serializer=SERIALIZER)
COLUMNS = ("id", "total", INCREMENT_COLUMN)
MOMENT = StateCapture(checkpoint=CheckpointMetaData(0, datetime.fromtimestamp(0, UTC)))


def task_in(folder: Path, **context: Any) -> SplitTask:
    storage = CheckpointStorage.open(folder.as_uri())
    return SplitTask(
        function=NodeTask.of(FUNCTION),
        storage=storage,
        attempt=AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1),
        config=CheckpointConfig(),
        moment=MOMENT,
        context=replace(
            SubtaskContext(
                job_id=job_id_of("job"),
                parallelism=1,
                max_parallelism=GROUPS,
                now_ms=0,
                logical_date=None,
                state_backend=ArrowStateBackend(),
            ),
            **context,
        ),
        records=f"{storage.base_uri}/records",
        results={"total": "total", "n": None, "top": "total"},
        input=SentRows(columns=COLUMNS),
    )


def batches(increment: int, size: int = 100) -> list[Any]:
    """Return a row of each key with the number of the increment, in any order and in small batches."""
    ids = np.random.default_rng(increment).permutation(np.arange(KEYS))
    values = pa.array(np.full(KEYS, increment))
    columns = [ids, values, pa.array([increment] * KEYS, pa.int32())]
    table = pa.table([pa.array(each) for each in columns], names=[f"c{n}" for n in range(len(columns))])
    return list(table.to_batches(max_chunksize=size))


def committed(task: SplitTask, increment: int) -> SplitReport:
    """Run a task, and return its record as the driver finds it."""
    before = set(task.storage.list_files(task.records))
    (batch,) = task(iter(batches(increment)))
    (name,) = set(task.storage.list_files(task.records)) - before
    data = task.storage.read_bytes(f"{task.records}/{name}")
    assert batch.column(0).to_pylist() == [data]
    return SplitReport.decode(data)


def test_task_commits_a_record_of_its_partition(tmp_path: Path) -> None:
    found = committed(task_in(tmp_path), 3)
    assert (found.part, found.increment, found.report.rows) == (0, 3, KEYS)
    (state,) = found.report.states
    (handle,) = state.subtask_states[0].managed_keyed
    assert (handle.key_group_range.start, handle.key_group_range.end) == (0, GROUPS - 1)


def test_partition_without_rows_has_a_record_and_no_state(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    (batch,) = task(iter(()))
    found = SplitReport.decode(batch.column(0)[0].as_py())
    assert (found.increment, found.report.rows, found.report.states) == (None, 0, ())


def test_partition_with_rows_of_two_increments_is_refused(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    with pytest.raises(CoordinatorError, match="the rows of one increment in a partition, found those of 2"):
        list(task(iter([*batches(0), *batches(1)])))
    assert task.storage.list_files(task.records) == {}


def test_each_try_of_a_task_has_a_record_and_files_of_its_own(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    first, second = committed(task, 0), committed(task, 0)
    files = [
        {stream.uri for _, stream in each.report.states[0].subtask_states[0].managed_keyed[0].shared}  # type: ignore[union-attr]
        for each in (first, second)
    ]
    assert files[0].isdisjoint(files[1])
    assert len(task.storage.list_files(task.records)) == 2


def test_parts_of_all_tasks_are_the_state_of_every_subtask(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    states = StageStates({"stage/sums": OperatorSchemas()}, parallelism=1, max_parallelism=GROUPS, restored={})
    states.add_parts([committed(task, number).report for number in range(5)], 7)
    assert states.saved_with("stage/sums") == 7
    run = run_of(task.storage, states.of("stage/sums")[0])
    rows = pa.concat_tables([emitted.table() for emitted in run.end()]).sort_by("id")
    assert rows["id"].to_pylist() == list(range(KEYS))
    assert set(rows["total"].to_pylist()) == {sum(range(5))}
    assert set(rows["n"].to_pylist()) == {5}
    assert set(rows["top"].to_pylist()) == {4}


def test_each_subtask_has_the_parts_of_its_key_groups(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    states = StageStates({"stage/sums": OperatorSchemas()}, parallelism=3, max_parallelism=GROUPS, restored={})
    reports = [committed(task, number).report for number in range(2)]
    states.add_parts(reports, 0)
    (operator,) = states.operator_states()
    handles = {index: each.managed_keyed for index, each in operator.subtask_states.items()}
    assert {index: len(each) for index, each in handles.items()} == {0: 2, 1: 2, 2: 2}
    groups = [group for each in handles.values() for group in each[0].key_group_range]
    assert groups == list(range(GROUPS))
    schemas = len(operator.coordinator_state.data)  # type: ignore[union-attr]
    assert operator.state_size == schemas + sum(each.states[0].state_size for each in reports)
