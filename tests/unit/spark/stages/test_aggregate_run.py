"""Declared aggregates over many keys, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import OperatorSubtaskState
from airflow_provider_statecheck.spark.key_groups import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.stages.executor.operator_run import AggregateRun
from airflow_provider_statecheck.spark.stages.executor.task_control import (
    OperatorTask,
    SnapshotMoment,
    SubtaskContext,
)
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, Max, Sum
from airflow_provider_statecheck.state.backends.loading import ArrowStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

KEYS, GROUPS, INCREMENTS = 10_000, 128, 3
SERIALIZER = KeySerializer((KeyField("id", pa.int64()),))
OUTPUT = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("n", pa.int64()), ("top", pa.int64())])
NODE = AggregateNode(uid="sums", aggregates={"total": Sum("v"), "n": Count(), "top": Max("v")})


def run_of(storage: CheckpointStorage, state: OperatorSubtaskState) -> AggregateRun:
    context = SubtaskContext(
        job_id=job_id_of("job"),
        subtask=0,
        parallelism=1,
        max_parallelism=GROUPS,
        epoch=1,
        now_ms=0,
        logical_date=None,
        state_backend=ArrowStateBackend(),
    )
    task = OperatorTask(
        uid="stage/sums",
        node=NODE,
        output_schema=OUTPUT,
        key_serializer=SERIALIZER,
        states={0: state},
    )
    run = AggregateRun(task, context, storage)
    run.open()
    return run


def increment(number: int) -> Any:
    """Return two rows of each key, ordered by key group and in no other way."""
    ids = np.random.default_rng(number).permutation(np.repeat(np.arange(KEYS), 2))
    values = pa.array(ids * 10 + number)
    groups = SERIALIZER.key_groups_of([pa.array(ids)], GROUPS)
    ones = pa.array(np.ones(len(ids), dtype="int64"))
    table = pa.table({KEY_GROUP_COLUMN: groups, "id": ids, "total": values, "n": ones, "top": values})
    return table.sort_by(KEY_GROUP_COLUMN)


def test_every_key_keeps_its_state_over_increments(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path.as_uri())
    directory = f"{storage.base_uri}/state"
    streams = FsCheckpointStreamFactory(
        storage=storage, exclusive=directory, shared=directory, writing=StateWriting(epoch=1)
    )
    state, given = OperatorSubtaskState(), []
    for number in range(INCREMENTS):
        run = run_of(storage, state)
        run.process_table(increment(number))
        if number == INCREMENTS - 1:
            given = [elements.table() for elements in run.end()]
        saved = run.snapshot(
            SnapshotMoment(checkpoint=CheckpointMetaData(number + 1, datetime.fromtimestamp(0, UTC))), streams
        ).state
        assert saved is not None
        state = saved.subtask_states[0]
        run.close()
    rows = pa.concat_tables(given).sort_by("id")
    ids = np.arange(KEYS)
    assert rows["id"].to_pylist() == ids.tolist()
    assert set(rows["n"].to_pylist()) == {2 * INCREMENTS}
    assert rows["total"].to_pylist() == (2 * (3 * 10 * ids + sum(range(INCREMENTS)))).tolist()
    assert rows["top"].to_pylist() == (ids * 10 + INCREMENTS - 1).tolist()
