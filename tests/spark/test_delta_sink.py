"""The Delta sink in tasks of Spark, and a stage that goes from one Delta table to another."""

from __future__ import annotations

import pytest

from tests.spark.sinks.test_parquet_sink import SCHEMA, written_by
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, rows_of


@pytest.mark.parametrize("partition_by", [(), ("day", "code")])
def test_a_table_has_what_tasks_of_spark_wrote_and_nothing_else(spark, tmp_path, partition_by):
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
