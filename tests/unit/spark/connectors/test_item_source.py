"""Splits of users, and row groups that PyArrow reads."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import StructType

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceChangedError, StorageError
from airflow_provider_statecheck.spark.connectors.custom import data_frame_source
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.file_parts import RowGroups
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.connectors.row_groups import (
    RowGroupReader,
    cut_into_tasks,
    pack_row_groups,
    read_footer,
)
from airflow_provider_statecheck.spark.connectors.sql.source import SqlSource
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.schemas import group_sizes, read_tasks, rows_per_batch

DataFrameSource: Any = data_frame_source.DataFrameSource  # no session is needed here
SHARED = [{"columns": "key"}, {"columns": []}, {"on_change": "retry"}, {"bytes_per_increment": "much"}]
"""Arguments that all sources of files and tables refuse."""


@pytest.mark.parametrize(
    ("source", "arguments", "refused"),
    [
        (ParquetSource, {}, [*SHARED, {"bytes_per_increment": 0}, {"files_per_increment": 0}, {"order": "size"}]),
        (ParquetSource, {}, [{"row_groups_per_increment": -1}, {"options": {"basePath": "/x"}}]),
        (ParquetSource, {}, [{"options": {"recursiveFileLookup": True}}, {"options": {"pathGlobFilter": "*.x"}}]),
        (DeltaSource, {}, [*SHARED, {"files_per_increment": 0}, {"starting_version": -1}]),
        (IcebergSource, {}, [*SHARED, {"files_per_increment": 0}]),
        (StageOutputSource, {}, [*SHARED, {"checkpoints_per_increment": 0}]),
        (DataFrameSource, {"load": print}, [{"splits_per_increment": each} for each in (0, True, "2")]),
        (SqlSource, {"table": "t"}, [{"on_change": "retry"}, {"table": None}, {"table": ""}, {"readers": 0}]),
        (SqlSource, {"table": "t"}, [{"rows_per_increment": 0}, {"ranges": 0}, {"ranges": 2, "rows_per_increment": 5}]),
        (SqlSource, {"table": "t"}, [{"query": "select 1 as id", "schema": "id bigint"}]),
        (SqlSource, {"table": None}, [{"query": "select 1 as id"}]),
    ],
)
def test_arguments_out_of_their_range_are_refused_where_they_are_written(source, arguments, refused):
    where = "sqlite:///shop.db" if source is SqlSource else "sales.orders"
    for each in refused:
        with pytest.raises(InvalidConfigurationError):
            source(where, **{**arguments, **each})


def test_an_iceberg_table_without_a_namespace_is_refused():
    with pytest.raises(InvalidConfigurationError, match="with its namespace"):
        IcebergSource("orders")


class Frame(list[Any]):
    """Rows without columns."""

    schema = StructType()
    sparkSession = None

    def unionAll(self, other):
        return Frame([*self, *other])


def load(spark, split):
    return Frame([spark, split])


def keys(enumerator):
    return [[split.split_id for split in each.splits] for each in iter(enumerator.next_increment, None)]


def test_splits_are_loaded_by_the_users_function():
    enumerator = DataFrameSource([1, 2, 3], load, splits_per_increment=2).open("spark")
    assert enumerator.load(enumerator.next_increment()) == ["spark", 1, "spark", 2]
    assert enumerator.load(enumerator.next_increment()) == ["spark", 3]
    assert enumerator.next_increment() is None


def test_splits_may_come_from_a_function_and_any_type_have_keys():
    source = DataFrameSource(lambda: [{"day": 1}, {"day": 2}], load, key=lambda split: f"day-{split['day']}")
    assert keys(source.open(None)) == [["day-1"], ["day-2"]]


def test_nobody_knows_the_bytes():
    enumerator = DataFrameSource(["a"], load).open(None)
    assert (enumerator.total_bytes, enumerator.finished_bytes) == (None, None)
    assert enumerator.next_increment().size_bytes is None


def test_no_splits_are_no_increments():
    assert keys(DataFrameSource([], load).open(None)) == []


def test_splits_of_an_iterator_are_those_of_every_attempt():
    source = DataFrameSource(iter([1, 2]), load)
    assert keys(source.open(None)) == keys(source.open(None)) == [["1"], ["2"]]


@pytest.mark.parametrize("splits", ["day", 5, None])
def test_splits_are_a_list(splits):
    with pytest.raises(InvalidConfigurationError, match="splits to be a list"):
        DataFrameSource(splits, load)
    with pytest.raises(InvalidConfigurationError, match="splits to be a list"):
        DataFrameSource(lambda: splits, load).open(None)


def test_two_splits_of_one_key_are_refused():
    with pytest.raises(InvalidConfigurationError, match="found 1 key;"):
        DataFrameSource([1, "1"], load).open(None)


@pytest.mark.parametrize("key", ["", "a\0b", 5, None])
def test_a_key_is_a_text(key):
    with pytest.raises(InvalidConfigurationError, match="key of a split"):
        DataFrameSource([1], load, key=lambda split: key).open(None)


MIB = 1 << 20


@pytest.fixture
def write(tmp_path):
    def write(table, **named):
        path = tmp_path / "file.parquet"
        pq.write_table(table, path, **named)
        return path

    return write


def task(path, start=0, end=1, **named):
    return RowGroups(f"file://{path.parent}", f"file://{path}", path.stat().st_size, start, end, named)


def rows(tasks, schema, numbers=None, options=None, *, is_case_sensitive=False):
    hidden = HiddenOptions(options or {})
    reader = RowGroupReader(
        options=hidden, schema=schema, packed_tasks=pack_row_groups(tasks), is_case_sensitive=is_case_sensitive
    )
    wanted = range(len(tasks)) if numbers is None else numbers
    batches = list(read_tasks(reader, [pa.record_batch({"id": list(wanted)})]))
    return pa.Table.from_batches(batches, schema).to_pylist()


@given(st.lists(st.integers(0, 40 * MIB), min_size=1, max_size=12), st.data())
def test_shares_of_tasks_are_all_row_groups_once_and_in_order(sizes, data):
    start = data.draw(st.integers(0, len(sizes) - 1))
    end = data.draw(st.integers(start + 1, len(sizes)))
    shares = list(cut_into_tasks(RowGroups("r", "u", 1, start, end, {}), sizes))
    assert [group for share in shares for group in range(share.start, share.end)] == list(range(start, end))
    assert all(share.end == share.start + 1 or sum(sizes[share.start : share.end]) <= 32 * MIB for share in shares)


def test_a_large_row_group_behind_empty_ones_has_a_task_of_its_own():
    shares = list(cut_into_tasks(RowGroups("r", "u", 1, 0, 3, {}), [0, 0, 33 * MIB]))
    assert [(share.start, share.end) for share in shares] == [(0, 2), (2, 3)]


def test_a_task_reads_its_row_groups_alone(write):
    path = write(pa.table({"id": range(10)}), row_group_size=2)
    schema = pa.schema({"id": pa.int64()})
    found = rows([task(path, 0, 1), task(path, 2, 4)], schema, numbers=[1])
    assert [row["id"] for row in found] == [4, 5, 6, 7]


def test_columns_come_in_the_order_of_the_schema_whatever_their_capitals_and_missing_ones_are_null(write):
    path = write(pa.table({"a": pa.array([1], pa.int32()), "B": ["x"], "unwanted": [0]}))
    schema = pa.schema({"b": pa.string(), "a": pa.int64(), "missing": pa.int64()})
    assert rows([task(path)], schema) == [{"b": "x", "a": 1, "missing": None}]


def test_columns_of_directories_take_the_place_of_those_in_files(write):
    path = write(pa.table({"id": [1, 2], "day": ["in", "file"]}))
    schema = pa.schema({"day": pa.string(), "id": pa.int64(), "no": pa.string()})
    assert rows([task(path, day="1", no=None)], schema) == [
        {"day": "1", "id": 1, "no": None},
        {"day": "1", "id": 2, "no": None},
    ]


def test_only_columns_of_directories_have_as_many_rows_as_the_file(write):
    path = write(pa.table({"id": [1, 2, 3]}))
    assert rows([task(path, day="1")], pa.schema({"day": pa.string()})) == [{"day": "1"}] * 3


@pytest.mark.parametrize(("is_there", "message"), [(True, "changed during the run"), (False, "found none")])
def test_a_missing_file_and_one_of_another_size_are_noticed_by_the_task(write, is_there, message):
    path = write(pa.table({"id": [1]}))
    before = task(path)
    if is_there:
        write(pa.table({"id": range(1000)}))
    else:
        path.unlink()
    with pytest.raises(SourceChangedError, match=message):
        rows([before], pa.schema({"id": pa.int64()}))


def test_what_is_no_parquet_file_is_told_by_its_name(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("x" * 100)
    with pytest.raises(StorageError, match=r"notes\.txt of a source cannot be read"):
        read_footer(f"file://{path}", f"file://{tmp_path}", 100, {})
    with pytest.raises(StorageError, match=r"notes\.txt of a source cannot be read"):
        rows([task(path)], pa.schema({"id": pa.int64()}))


def test_options_are_hidden_in_what_goes_to_tasks():
    reader = RowGroupReader(
        options=HiddenOptions({"secret": "very-secret"}),
        schema=pa.schema({}),
        packed_tasks=b"",
        is_case_sensitive=False,
    )
    assert "very-secret" not in repr(reader)


def test_sizes_of_row_groups_are_what_is_stored(write):
    path = write(pa.table({"id": range(100)}), row_group_size=50)
    sizes = group_sizes(pq.read_metadata(path))
    assert len(sizes) == 2
    assert 0 < sum(sizes) < path.stat().st_size


def test_decimals_keep_their_digits(write):
    path = write(pa.table({"d": pa.array([Decimal("12345678.90")], pa.decimal128(10, 2))}))
    assert rows([task(path)], pa.schema({"d": pa.decimal128(10, 2)})) == [{"d": Decimal("12345678.90")}]


def test_batches_stay_small_however_wide_rows_are():
    group = SimpleNamespace(num_rows=1000, total_byte_size=1000 * 64 * MIB)
    assert rows_per_batch(group) == 1
    assert rows_per_batch(SimpleNamespace(num_rows=10**9, total_byte_size=10**9)) == 64 * 1024
