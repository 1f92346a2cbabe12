"""Columns in the names of directories."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.file_listing import partition_values, require_same_partition_columns

ROOT = "s3://lake/orders"


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


def test_files_of_other_columns_are_refused():
    with pytest.raises(InvalidConfigurationError, match=r"\['day'\].*\['month'\]"):
        require_same_partition_columns([(ROOT, f"{ROOT}/day=1/x"), (ROOT, f"{ROOT}/month=1/x")])


def test_files_of_the_same_columns_may_have_several_roots():
    require_same_partition_columns([(ROOT, f"{ROOT}/day=1/x"), ("s3://old", "s3://old/day=2/x")])
