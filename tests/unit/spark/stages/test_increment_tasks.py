"""What the tasks of an increment are given."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.spark.stages.executor.task_control import SnapshotMoment
from airflow_provider_statecheck.spark.stages.increment_jobs import INLINE_BUDGET, Combining, IncrementTasks
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.state.backends.loading import load_state_backend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def _tasks(parallelism: int, threshold: int) -> IncrementTasks:
    storage, config = CheckpointStorage.open("memory://increment-tasks"), CheckpointConfig()
    config.file_merging_enabled = False
    config.data_inline_threshold = threshold
    return IncrementTasks(
        vertices=(PlannedVertex(key=None, operators=(), output_schema=None),),
        states=StageStates({}, parallelism=parallelism, max_parallelism=32768, restored={}),
        schemas={},
        sink=None,
        storage=storage,
        attempt=AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("stage"), epoch=1),
        state_backend=load_state_backend(None, {}),
        config=config,
        logical_date=None,
        now_ms=0,
        combining=Combining(None),
    )


@pytest.mark.parametrize(("parallelism", "expected"), [(2, 20 * 1024), (1000, INLINE_BUDGET // 1000)])
def test_subtasks_share_what_inline_state_may_travel_with_each_task(parallelism: int, expected: int) -> None:
    task = _tasks(parallelism, threshold=20 * 1024).of(
        SnapshotMoment(checkpoint=CheckpointMetaData(1, datetime.fromtimestamp(0, UTC)))
    )[0]
    assert task.writing.config.data_inline_threshold == expected
    assert not task.writing.config.file_merging_enabled
