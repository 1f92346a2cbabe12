"""Directories, files and patterns as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.file_listing import SourcePath, parse_paths


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/data/orders/", SourcePath("file:///data/orders")),
        (Path("/data/orders"), SourcePath("file:///data/orders")),
        ("file:///data/orders/", SourcePath("file:///data/orders")),
        ("local:///data/orders", SourcePath("file:///data/orders")),
        ("S3://lake/orders/", SourcePath("s3://lake/orders")),
        ("s3://lake", SourcePath("s3://lake")),
        ("s3://lake/*", SourcePath("s3://lake", "*")),
        ("hdfs:///data/day=*/x.json", SourcePath("hdfs:///data", "day=*/x.json")),
        ("abfs://c@account.dfs.core.windows.net/a", SourcePath("abfs://c@account.dfs.core.windows.net/a")),
    ],
)
def test_a_path_is_a_place_with_or_without_a_pattern(path, place):
    assert parse_paths(path) == (place,)


def test_a_relative_path_is_below_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert parse_paths("orders/*.csv") == (SourcePath(f"file://{tmp_path}/orders", "*.csv"),)


def test_several_paths_are_several_places():
    assert parse_paths(["/a", Path("/b")]) == (SourcePath("file:///a"), SourcePath("file:///b"))


@pytest.mark.parametrize("path", ["", "  ", [], None, 5, "file://data/x", "/*.parquet", "s3://*/x/", [""]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(InvalidConfigurationError):
        parse_paths(path)


@pytest.mark.parametrize(
    ("pattern", "below", "chosen"),
    [
        ("*.csv", "a.csv", True),
        ("*.csv", "a.csvx", False),
        ("*.csv", "dir/a.csv", False),
        ("*/a.csv", "dir/a.csv", True),
        ("day=*", "day=1/hour=2/a.csv", True),
        ("**/a.csv", "a.csv", True),
        ("**/a.csv", "x/y/a.csv", True),
        ("x/**/a.csv", "x/a.csv", True),
        ("x/**", "x/y/z", True),
        ("x/**", "y/z", False),
        ("a?.csv", "a1.csv", True),
        ("a?.csv", "a/.csv", False),
        ("a[0-3].csv", "a2.csv", True),
        ("a[!0-3].csv", "a2.csv", False),
        ("a.c*", "abc", False),
        ("a[.csv", "a[.csv", True),
    ],
)
def test_a_star_stays_within_a_name_and_two_stars_do_not(pattern, below, chosen):
    assert SourcePath("file:///r", pattern).matches(below) is chosen


def test_without_a_pattern_everything_is_meant():
    assert SourcePath("file:///r").matches("x/y/z")
