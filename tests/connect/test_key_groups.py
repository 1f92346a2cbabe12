"""Key groups and their shuffle over Spark Connect."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import key_group_ranges
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN, key_serializer_of, shuffled


def test_partition_i_has_exactly_the_key_groups_of_subtask_i_over_connect(spark: Any) -> None:
    schema = pa.schema([("partition", pa.int32()), ("key_groups", pa.list_(pa.int32()))])

    def seen(batches: Any) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        found = {group for batch in batches for group in batch.column(KEY_GROUP_COLUMN).to_pylist()}
        row = {"partition": context.partitionId(), "key_groups": sorted(found)}
        yield pa.RecordBatch.from_pylist([row], schema=schema)

    keyed = shuffled(spark.range(500), ["id"], 17, 5)
    rows = keyed.mapInArrow(seen, "partition int, key_groups array<int>").collect()
    expected = {index: list(owned) for index, owned in enumerate(key_group_ranges(5, 17))}
    assert {row["partition"]: row["key_groups"] for row in rows} == expected


def test_the_key_group_of_several_columns_is_equal_over_connect(spark: Any) -> None:
    df = spark.sql("select id, concat('c', id) as country, cast(id / 4 as decimal(20,2)) as size from range(50)")
    columns = ["id", "country", "size"]
    rows = shuffled(df, columns, 128, 3).toArrow()
    serializer = key_serializer_of(df, columns)
    assert (
        serializer.key_groups_of([rows[name] for name in columns], 128).tolist() == rows[KEY_GROUP_COLUMN].to_pylist()
    )


def test_a_type_that_cannot_be_part_of_a_key_is_refused_over_connect(spark: Any) -> None:
    with pytest.raises(UnsupportedStateError, match="found k of type array<int>"):
        shuffled(spark.sql("select array(1) as k"), ["k"], 128, 4)
