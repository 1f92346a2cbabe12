"""Columns in the names of directories."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.file_listing import require_same_partition_columns
from airflow_provider_statecheck.spark.tables.schemas import partition_names, partition_path, partition_values

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
