"""Values of partition columns in the names of directories, as Spark writes and reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.delta.table_files import DataFile
from airflow_provider_statecheck.spark.connectors.files.listing import require_same_partition_columns
from airflow_provider_statecheck.spark.tables.partition_directories import (
    is_cast_like_a_directory,
    partition_names,
    partition_path,
    partition_values,
)
from airflow_provider_statecheck.state.source_items import Item

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
        ("town=Z%C3%BCrich/x", {"town": "Z\xc3\xbcrich"}),
        ("town=Zürich%20%25C3/x", {"town": "Zürich %C3"}),
        ("share=50%/rest=%zz%4/x", {"share": "50%", "rest": "%zz%4"}),
        ("day=1/other/hour=2/x", {"hour": "2"}),
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
    assert partition_names("", f"{path}/x") == tuple(values)


def test_text_that_stands_for_null_differs_from_null() -> None:
    text = "__HIVE_DEFAULT_PARTITION__"
    file = DataFile("a.parquet", 1, {"k": text, "n": None})
    assert DataFile.of(file.item) == file
    # As earlier versions have written null.
    assert DataFile.of(Item.of(f"a.parquet#k={text}", 1, "")).values == {"k": None}


def test_an_empty_value_is_a_null_value_as_in_spark():
    assert partition_path({"day": "", "hour": None}) == "/".join(
        f"{name}=__HIVE_DEFAULT_PARTITION__" for name in ("day", "hour")
    )


def columns_of(*files, is_case_sensitive=False):
    require_same_partition_columns(files, lambda: is_case_sensitive)


def test_files_of_the_same_columns_may_have_several_roots():
    columns_of((ROOT, f"{ROOT}/day=1/x"), ("s3://old", "s3://old/day=2/x"))
    with pytest.raises(InvalidConfigurationError, match="same partition columns"):
        columns_of((ROOT, f"{ROOT}/day=1/x"), ("s3://old", "s3://old/hour=2/x"))


def test_columns_in_another_case_are_others_only_where_spark_tells_them_apart():
    files = (ROOT, f"{ROOT}/day=1/x"), (ROOT, f"{ROOT}/Day=2/x")
    columns_of(*files)
    with pytest.raises(InvalidConfigurationError, match="same partition columns"):
        columns_of(*files, is_case_sensitive=True)


@pytest.mark.parametrize(
    ("raw", "kind", "expected"),
    [
        ("1", "int", True),
        ("-1", "bigint", True),
        ("007", "int", True),
        ("%31", "int", False),
        ("+1", "int", False),
        ("2147483648", "int", False),
        ("128", "tinyint", False),
        ("2026-02-29", "date", False),
        ("2026-02-28", "date", True),
        ("2026-02-28 10%3A00%3A00.5", "timestamp", True),
        ("2026-02-28", "timestamp", False),
        ("1.5", "double", True),
        ("1e400", "double", False),
        ("1.5", "float", False),
        ("1.5", "decimal(10,2)", False),
        ("٣", "int", False),
        ("٣.1", "double", False),
        ("٢٠٢٦-11-21", "date", False),
        ("٢٠٢٦-11-21 01:02:03", "timestamp", False),
        ("true", "boolean", True),
        ("yes", "boolean", False),
        ("", "string", False),
        ("a%2Fb", "string", True),
        ("a", "varchar(5)", False),
        ("a", "string collate UTF8_LCASE", False),
        ("a", "binary", False),
        ("__HIVE_DEFAULT_PARTITION__", "binary", True),
    ],
)
def test_values_whose_parsing_by_spark_is_a_cast_are_known(raw, kind, expected):
    data_type: Any = SimpleNamespace(simpleString=lambda: kind)
    assert is_cast_like_a_directory(raw, data_type) is expected
