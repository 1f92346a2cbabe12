"""Sinks of Parquet files and Delta tables in tasks of Spark."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.files.sink import committed_files, read_committed
from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt
from tests.shared_spark import UNREADABLE
from tests.unit.spark.connectors.attempts import Attempt, hidden_in
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt, keys_of, rows_of

SCHEMA = pa.schema([("key", pa.int64()), ("code", pa.string()), ("day", pa.date32())])


def written_by(spark: Any, attempt: SinkAttempt, first: int, last: int) -> Any:
    """Write rows in two tasks."""
    sink, epoch, columns = attempt.sink, attempt.epoch, SCHEMA

    def write(batches: Any) -> Any:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        context = SinkTaskContext(subtask=task.partitionId(), epoch=epoch, task_id="task", schema=columns)
        writer = sink.writer(context)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        found = [json.dumps(committable) for committable in writer.prepare_commit()]
        yield pa.RecordBatch.from_pydict({"committable": found})

    rows = spark.range(first, last, numPartitions=2).selectExpr(
        "id AS key", "lpad(id, 3, '0') AS code", "date_add(DATE'2024-01-01', CAST(id % 2 AS INT)) AS day"
    )
    return [json.loads(row.committable) for row in rows.mapInArrow(write, "committable string").collect()]


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.soak), ("day", "code")])
def test_spark_reads_what_its_tasks_wrote_and_nothing_else(spark, tmp_path, partition_by):
    path = f"file://{tmp_path}/table"
    attempt = Attempt(path, 1, schema=SCHEMA, partition_by=partition_by).open()
    attempt.commit(1, written_by(spark, attempt, 0, 10))
    written_by(spark, attempt, 10, 20)  # of a checkpoint that never was complete
    second = Attempt(path, 2, restored=1, schema=SCHEMA, partition_by=partition_by).open()
    assert hidden_in(path, "staging")
    expected = [(key, f"{key:03}", datetime.date(2024, 1, 1 + key % 2)) for key in range(10)]
    committed = read_committed(spark, path).select("key", "code", "day")
    assert sorted(tuple(row) for row in committed.collect()) == expected
    found = spark.read.schema("key bigint, code string, day date").parquet(path).select("key", "code", "day")
    assert sorted(tuple(row) for row in found.collect()) == expected
    second.finish()
    assert sum(file.rows for file in committed_files(path)) == 10


def test_a_changed_page_of_committed_output_is_an_error_and_no_other_value(spark, tmp_path):
    path = f"file://{tmp_path}/table"
    attempt = Attempt(path, 1, schema=SCHEMA).open()
    attempt.commit(1, written_by(spark, attempt, 0, 10))
    for file in committed_files(path):
        place = Path(file.uri.removeprefix("file://"))
        content = bytearray(place.read_bytes())
        # The dictionary of the codes: a filter on them would drop what the changed one no longer has.
        content[pq.read_metadata(place).row_group(0).column(1).dictionary_page_offset + 40] ^= 1
        place.write_bytes(content)
    for condition in ("true", "code = '003'"):
        with pytest.raises(Exception, match=UNREADABLE):
            read_committed(spark, path).where(condition).collect()


def test_a_target_without_a_commit_has_no_table(spark, tmp_path):
    path = f"file://{tmp_path}/table"
    with pytest.raises(StorageError, match="found no commit"):
        read_committed(spark, path)
    with pytest.raises(UnsupportedStateError, match="in the memory of this process"):
        read_committed(spark, "memory://somewhere/table")


@pytest.mark.soak
def test_a_table_whose_output_is_empty_has_its_columns(spark, tmp_path):
    path = f"file://{tmp_path}/table"
    attempt = Attempt(path, 1).open()
    attempt.commit(1, attempt.write())
    found = read_committed(spark, path)
    assert (found.columns, found.count()) == (["key", "name"], 0)


@pytest.mark.parametrize("partition_by", [(), ("day", "code")])
def test_a_delta_table_has_what_tasks_of_spark_wrote_and_nothing_else(spark, tmp_path, partition_by):
    path = f"file://{tmp_path}/table"
    attempt = DeltaAttempt(path, 1, schema=SCHEMA, partition_by=partition_by).open()
    attempt.commit(1, written_by(spark, attempt, 0, 10))
    written_by(spark, attempt, 10, 20)  # of a checkpoint that never was complete
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1, schema=SCHEMA, partition_by=partition_by).open()
    second.commit(2, written_by(spark, second, 20, 25))
    second.finish()
    assert keys_of(path) == [*range(10), *range(20, 25)]
    codes = rows_of(path).sort_by("key").column("code").to_pylist()
    assert codes == [f"{key:03}" for key in (*range(10), *range(20, 25))]
