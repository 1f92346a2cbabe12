"""The key group of each key is the same in Spark and in Python, and partition i gets the key groups of subtask i."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import functions as F

from airflow_provider_statecheck.checkpoint.states.handles import key_group_ranges
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.stages.planning import (
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    key_serializer_of,
    shuffled,
    with_key_groups,
)
from tests.key_values import EDGES, STRATEGIES, TYPES, encode
from tests.shared_spark import from_arrow, needs_spark, setting, to_arrow
from tests.soak import every_nth, rest_in_soak

VECTORS = Path(__file__).parents[1] / "unit" / "state" / "keys" / "key_groups.json"
GROUPS = (128, 1000, 32768)
# One Spark job for many values: what is drawn is a whole column.
_BATCH = 300
few_jobs = settings(
    max_examples=3, deadline=None, suppress_health_check=[*HealthCheck], database=None, print_blob=False
)


@pytest.fixture(params=["true", "false"], ids=["ansi", "not-ansi"])
def ansi(spark: Any, request: pytest.FixtureRequest) -> Any:
    with setting(spark, "spark.sql.ansi.enabled", request.param):
        yield request.param


def dataframe(spark: Any, table: pa.Table) -> Any:
    names = {arrow: name for name, arrow in TYPES.items()}
    return from_arrow(spark, table, ", ".join(f"{field.name} {names[field.type]}" for field in table.schema))


def spark_key_groups(spark: Any, table: pa.Table, max_parallelism: int) -> list[int]:
    keyed = with_key_groups(dataframe(spark, table), table.column_names, max_parallelism, 1)
    return [row[0] for row in keyed.select(KEY_GROUP_COLUMN).collect()]


def table_of(**columns: tuple[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.array(values, TYPES[kind]) for name, (kind, values) in columns.items()})


def python_key_groups(spark: Any, table: pa.Table, max_parallelism: int) -> list[int]:
    serializer = key_serializer_of(dataframe(spark, table.slice(0, 0)), table.column_names)
    keys = serializer.from_columns(table.columns)
    return [serializer.key_group_of(key, max_parallelism) for key in keys]


@pytest.mark.parametrize("kind", every_nth(TYPES, 4))
def test_the_test_vectors_are_what_spark_computes(spark: Any, kind: str) -> None:
    table = table_of(k=(kind, EDGES[kind]))
    vectors = json.loads(VECTORS.read_text())[kind]
    assert vectors["values"] == [encode(kind, value) for value in EDGES[kind]]
    for groups in GROUPS:
        assert vectors["key_groups"][str(groups)] == spark_key_groups(spark, table, groups)


@pytest.mark.parametrize("kind", every_nth(TYPES, 4))
def test_the_key_group_of_every_type_is_equal_in_spark_and_python(spark: Any, kind: str) -> None:
    @few_jobs
    @given(values=st.lists(STRATEGIES[kind], min_size=1, max_size=_BATCH), groups=st.sampled_from(GROUPS))
    def check(values: list[Any], groups: int) -> None:
        table = table_of(k=(kind, [*EDGES[kind], *values]))
        assert python_key_groups(spark, table, groups) == spark_key_groups(spark, table, groups)

    check()


def test_the_key_group_of_several_columns_is_equal_in_spark_and_python(spark: Any) -> None:
    kinds = list(TYPES)
    row = st.tuples(*(st.one_of(st.sampled_from(EDGES[kind]), STRATEGIES[kind]) for kind in kinds))

    @few_jobs
    @given(rows=st.lists(row, min_size=1, max_size=40))
    def check(rows: list[tuple[Any, ...]]) -> None:
        columns = zip(kinds, zip(*rows, strict=True), strict=True)
        table = table_of(**{f"c{i}": (kind, list(values)) for i, (kind, values) in enumerate(columns)})
        assert python_key_groups(spark, table, 128) == spark_key_groups(spark, table, 128)

    check()


def contents(keyed: Any) -> dict[int, list[int]]:
    """Return the distinct key groups of each partition, of the empty ones too, as Python sees them."""
    schema = pa.schema([("partition", pa.int32()), ("key_groups", pa.list_(pa.int32()))])

    def seen(batches: Any) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        found = {group for batch in batches for group in batch.column(KEY_GROUP_COLUMN).to_pylist()}
        row = {"partition": context.partitionId(), "key_groups": sorted(found)}
        yield pa.RecordBatch.from_pylist([row], schema=schema)

    rows = keyed.mapInArrow(seen, "partition int, key_groups array<int>").collect()
    return {row["partition"]: row["key_groups"] for row in rows}


@pytest.mark.parametrize(("groups", "parallelism"), rest_in_soak([(16, 1), (16, 3), (17, 5), (16, 16)], (17, 5)))
@pytest.mark.usefixtures("ansi")
def test_partition_i_has_exactly_the_key_groups_of_subtask_i(spark: Any, groups: int, parallelism: int) -> None:
    found = contents(shuffled(spark.range(500), ["id"], groups, parallelism))
    ranges = key_group_ranges(parallelism, groups)
    assert found == {index: list(owned) for index, owned in enumerate(ranges)}


@pytest.mark.soak
@pytest.mark.usefixtures("ansi")
def test_adaptive_execution_leaves_empty_and_tiny_partitions_alone(spark: Any) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    found = contents(shuffled(spark.range(1), ["id"], 128, 8))
    assert sorted(found) == list(range(8))
    assert [groups for groups in found.values() if groups] == [[108]]


def test_an_input_without_any_row_has_no_partitions(spark: Any) -> None:
    # Spark leaves the shuffle out, so a stage must not wait for a reply of each subtask.
    assert contents(shuffled(spark.range(5).where("id > 10"), ["id"], 128, 8)) == {}


def test_the_most_key_groups_and_subtasks_do_not_overflow(spark: Any) -> None:
    keyed = with_key_groups(spark.range(2000), ["id"], 32768, 32768)
    assert keyed.where(f"{KEY_GROUP_COLUMN} != {SUBTASK_COLUMN}").count() == 0
    assert keyed.where(f"{KEY_GROUP_COLUMN} not between 0 and 32767").count() == 0


def test_the_rows_are_kept_and_the_key_group_comes_last(spark: Any) -> None:
    df = spark.sql("select id as `a.b`, id as `c``d`, cast(id as string) as `e` from range(50)")
    keyed = shuffled(df, ["a.b", "c`d"], 16, 4)
    assert keyed.columns == ["a.b", "c`d", "e", KEY_GROUP_COLUMN]
    assert sorted(row[0] for row in keyed.collect()) == list(range(50))


def test_a_column_of_a_char_or_varchar_is_a_key_as_text(spark: Any) -> None:
    spark.sql("create or replace temp view chars as select cast('ab' as char(5)) c, cast('ab' as varchar(5)) v")
    df = spark.table("chars")
    [row] = with_key_groups(df, ["c", "v"], 128, 1).collect()
    assert key_serializer_of(df, ["c", "v"]).key_group_of((row["c"], row["v"]), 128) == row[KEY_GROUP_COLUMN]


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Kathmandu"])
def test_a_timestamp_has_its_key_group_whatever_the_time_zone_of_the_session(spark: Any, zone: str) -> None:
    with setting(spark, "spark.sql.session.timeZone", zone):
        df = dataframe(spark, table_of(k=("timestamp", EDGES["timestamp"])))
        sent = to_arrow(with_key_groups(df, ["k"], 128, 1))
    serializer = key_serializer_of(df, ["k"])
    assert serializer.from_columns([sent["k"]]) == EDGES["timestamp"]
    assert serializer.key_groups_of([sent["k"]], 128).tolist() == sent[KEY_GROUP_COLUMN].to_pylist()


@pytest.mark.parametrize(
    "expression",
    [
        "array(1)",
        "map('a', 1)",
        "named_struct('a', 1)",
        "interval '1' day",
        "interval '1' month",
        pytest.param("time'01:02:03'", marks=needs_spark("4.1", "the type time")),
        pytest.param("parse_json('1')", marks=needs_spark("4.0", "the type variant")),
        "null",
        pytest.param("'a' collate UTF8_LCASE", marks=needs_spark("4.0", "a collation")),
        pytest.param("'a' collate UNICODE_CI", marks=needs_spark("4.0", "a collation")),
    ],
)
def test_a_type_whose_equal_values_may_differ_in_bytes_is_refused_before_anything_runs(
    spark: Any, expression: str
) -> None:
    df = spark.sql(f"select {expression} as k")
    with pytest.raises(UnsupportedStateError, match="found k of type"):
        with_key_groups(df, ["k"], 128, 4)


@pytest.mark.parametrize("columns", [[], ["absent"], ["id", "id"], ["twice"]])
def test_a_key_of_columns_that_are_not_there_exactly_once_is_refused(spark: Any, columns: list[str]) -> None:
    df = spark.range(1).select("id", F.lit(1).alias("twice"), F.lit(2).alias("twice"))
    with pytest.raises(InvalidConfigurationError, match="Expected"):
        with_key_groups(df, columns, 128, 4)


@pytest.mark.parametrize(("parallelism", "groups"), [(0, 128), (129, 128), (1, 32769)])
def test_a_parallelism_out_of_bounds_is_refused(spark: Any, parallelism: int, groups: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism"):
        with_key_groups(spark.range(1), ["id"], groups, parallelism)
