"""Tasks of an increment, their reports, and when Spark combines aggregates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql.types import StructType

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import OperatorSubtaskState
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.connectors.source import Increment, SizeUnit, Split
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import INLINE_BUDGET, Combining, IncrementTasks
from airflow_provider_statecheck.spark.stages.increment_loop import require_all_subtasks
from airflow_provider_statecheck.spark.stages.planning import PlannedNode, PlannedVertex
from airflow_provider_statecheck.spark.stages.stage import KeyNode, MapNode
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.spark.tables.alignment import InputColumns
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.spark.stages.loop_without_spark import Splits


def reports(rows: int, keys: int) -> list[TaskReport]:
    return [TaskReport(vertex=0, subtask=i, rows=rows // 2, keys=keys // 2) for i in range(2)]


@pytest.mark.parametrize(("keys", "pays"), [(98, True), (100, False), (1000, False)])
def test_many_rows_of_a_key_are_combined_from_the_second_increment_on(keys: int, pays: bool) -> None:
    combining = Combining(None)
    assert not combining.is_on
    combining.observe(reports(1000, keys))
    assert combining.is_on is pays


def test_increment_that_combines_says_nothing_of_the_rows() -> None:
    combining = Combining(None)
    combining.observe(reports(1000, 10))
    combining.observe(reports(10, 10))
    assert combining.is_on


def test_increment_without_rows_and_other_vertices_change_nothing() -> None:
    combining = Combining(None)
    combining.observe([TaskReport(vertex=0, subtask=0), TaskReport(vertex=1, subtask=0, rows=1000, keys=1)])
    assert not combining.is_on


@pytest.mark.parametrize("wanted", [True, False])
def test_choice_of_the_user_stays(wanted: bool) -> None:
    combining = Combining(wanted)
    combining.observe(reports(1000, 10))
    assert combining.is_on is wanted


def _tasks(parallelism: int, threshold: int) -> IncrementTasks:
    storage, config = CheckpointStorage.open("memory://increment-tasks"), CheckpointConfig()
    config.file_merging_enabled = False
    config.data_inline_threshold = threshold
    return IncrementTasks(
        columns=InputColumns(schema=StructType()),
        vertices=(PlannedVertex(key=None, functions=(), output_schema=None),),
        states=StageStates({}, parallelism=parallelism, max_parallelism=32768, restored={}),
        sink=None,
        storage=storage,
        attempt=AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1),
        config=config,
        context=SubtaskContext(
            job_id=job_id_of("job"),
            parallelism=parallelism,
            max_parallelism=32768,
            now_ms=0,
            logical_date=None,
            state_backend=None,
        ),
        combining=Combining(None),
    )


@pytest.mark.parametrize(("parallelism", "expected"), [(2, 20 * 1024), (1000, INLINE_BUDGET // 1000)])
def test_subtasks_share_what_inline_state_may_travel_with_each_task(parallelism: int, expected: int) -> None:
    task = _tasks(parallelism, threshold=20 * 1024).of(
        StateCapture(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC)))
    )[0]
    assert task.config.data_inline_threshold == expected
    assert not task.config.file_merging_enabled


FREE = PlannedVertex(key=None, functions=(), output_schema=None)
KEYED = PlannedVertex(key=KeyNode(columns=("a",)), functions=(), output_schema=None)


def reports_of(vertex: int, *subtasks: int) -> list[TaskReport]:
    return [TaskReport(vertex=vertex, subtask=subtask) for subtask in subtasks]


@pytest.mark.parametrize(
    "reported", [reports_of(1, 2, 0, 1), [], reports_of(0, 1)], ids=["all", "none", "some in front of the first key"]
)
def test_reports_of_all_subtasks_of_a_key_or_of_none_are_enough(reported: list[TaskReport]) -> None:
    require_all_subtasks(reported, [FREE, KEYED], 3)
    with pytest.raises(CoordinatorError, match="each of the 3 subtasks"):
        require_all_subtasks([*reported, *reports_of(1, 0)], [FREE, KEYED], 3)


@pytest.mark.parametrize("subtasks", [(0, 1), (0, 1, 1, 2), (1, 2, 3)])
def test_missing_or_repeated_report_behind_a_key_is_refused(subtasks: tuple[int, ...]) -> None:
    with pytest.raises(CoordinatorError, match="each of the 3 subtasks"):
        require_all_subtasks(reports_of(1, *subtasks), [FREE, KEYED], 3)


def test_task_has_the_function_of_its_plan_with_its_restored_state() -> None:
    uid, node = "stage/map", MapNode(uid="map", function=len)
    state, types = OperatorSubtaskState(), OperatorSchemas()
    states = StageStates(
        {uid: types},
        parallelism=1,
        max_parallelism=8,
        restored={(operator_id_of(uid), 0): state},
        restored_schemas={uid: types},
    )
    vertex = PlannedVertex(
        key=None, functions=(PlannedNode(uid=uid, node=node, output_schema=None),), output_schema=None
    )
    tasks = replace(_tasks(1, 0), vertices=(vertex,), states=states)
    (task,) = tasks.of(StateCapture(checkpoint=CheckpointMetaData(1, datetime.now(UTC))))
    (function,) = task.functions
    assert (function.uid, function.operator_id, function.node) == (uid, operator_id_of(uid), node)
    assert (dict(function.states), function.schemas, function.restored_checkpoint_id) == ({0: state}, types, None)


def test_progress_is_in_bytes_or_else_in_splits() -> None:
    increment = Increment(1, (Split("a"), Split("b")), size_bytes=70)
    in_bytes = SizeUnit.of(Splits(total_splits=5, finished_splits=2, total_bytes=100, finished_bytes=30))
    in_splits = SizeUnit.of(Splits(total_splits=5, finished_splits=2))
    assert (in_bytes.total, in_bytes.finished, in_bytes.left, in_bytes.amount_of(increment)) == (100, 30, 70, 70)
    assert (in_splits.total, in_splits.finished, in_splits.left, in_splits.amount_of(increment)) == (5, 2, 3, 2)
