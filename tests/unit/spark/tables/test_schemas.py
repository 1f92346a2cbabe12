"""Tasks that read rows, unions, and names of partition directories."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceChangedError, StorageError
from airflow_provider_statecheck.spark.sources.file_listing import require_same_partition_columns
from airflow_provider_statecheck.spark.tables.schemas import (
    TaskReader,
    concealed_failures,
    consecutive,
    merged_schema,
    pack_tasks,
    partition_names,
    partition_path,
    partition_values,
    read_tasks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo(TaskReader):
    def read_task(self, task):
        yield from task


def test_a_spark_task_reads_the_tasks_of_its_numbers():
    reader = Echo(schema=None, packed_tasks=pack_tasks([["a"], ["b", "c"], []]))

    assert list(read_tasks(reader, [pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [0]})])) == ["b", "c", "a"]
    assert "packed" not in repr(reader)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 40))
def test_consecutive_elements_are_divided_without_gaps_and_within_the_limit(sizes, limit):
    found = list(consecutive(sizes, limit))

    assert [position for each in found for position in each] == list(range(len(sizes)))
    assert all(len(each) == 1 or sum(sizes[each.start : each.stop]) <= limit for each in found)


def test_errors_of_a_client_are_told_without_credentials():
    with (
        pytest.raises(StorageError, match=r"^It failed: RuntimeError") as raised,
        concealed_failures("It failed", {"secret": "hush-hush"}),
    ):
        raise RuntimeError("of hush-hush")
    assert "hush-hush" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_own_errors_stay_as_they_are():
    with pytest.raises(SourceChangedError, match="ours"), concealed_failures("It failed", {}):
        raise SourceChangedError("ours")


def test_schemas_are_merged_by_the_names_of_columns():
    first = pa.schema([("a", pa.int64()), ("b", pa.string())])
    second = pa.schema([("c", pa.date32()), ("b", pa.large_string())])

    assert merged_schema([first, second]) == pa.schema(
        [("a", pa.int64()), ("b", pa.large_string()), ("c", pa.date32())]
    )


ROOT = "s3://lake/orders"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("below", "columns"),
    [
        ("a.parquet", {}),
        ("day=1/hour=2/a.parquet", {"day": "1", "hour": "2"}),
        ("day=1/part/k=v.parquet", {"day": "1"}),
        ("na%20me=a%2Fb/x", {"na me": "a/b"}),
        ("day=__HIVE_DEFAULT_PARTITION__/x", {"day": None}),
        ("formula=a=b/x", {"formula": "a=b"}),
    ],
)
def test_directories_between_root_and_file_hold_columns(below, columns):
    assert partition_values(ROOT, f"{ROOT}/{below}") == columns


def test_directories_above_the_root_hold_none():
    assert partition_values(f"{ROOT}/day=1", f"{ROOT}/day=1/x") == {}


@given(st.dictionaries(TEXTS, st.none() | TEXTS, min_size=1, max_size=3))
def test_values_are_the_same_after_their_path(values):
    path = partition_path(values)
    assert partition_values(ROOT, f"{ROOT}/{path}/x") == values
    assert partition_names(path) == tuple(values)


def test_an_empty_value_is_a_null_value_as_in_spark():
    assert partition_path({"day": "", "hour": None}) == "/".join(
        f"{name}=__HIVE_DEFAULT_PARTITION__" for name in ("day", "hour")
    )


def test_files_of_other_columns_are_refused():
    with pytest.raises(InvalidConfigurationError, match=r"\['day'\].*\['month'\]"):
        require_same_partition_columns([(ROOT, f"{ROOT}/day=1/x"), (ROOT, f"{ROOT}/month=1/x")])


def test_files_of_the_same_columns_may_have_several_roots():
    require_same_partition_columns([(ROOT, f"{ROOT}/day=1/x"), ("s3://old", "s3://old/day=2/x")])
