"""Paths and files of a source."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError, StorageError
from airflow_provider_statecheck.spark.connectors.files.listing import FileListing, SourcePath, parse_paths


@pytest.fixture
def write(tmp_path):
    def write(*names, content="x", age=None):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            if age is not None:
                os.utime(path, (1_000_000 - age, 1_000_000 - age))

    return write


OLDEST_FIRST = FileListing((SourcePath("memory://"),), {}, order="mtime")


@pytest.fixture
def tells(monkeypatch):
    """Let a filesystem say of its files what the test gives."""

    def tells(found):
        monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: found)

    return tells


def listed(tmp_path, *patterns, order="path"):
    listing = FileListing(parse_paths([f"{tmp_path}/{pattern}" for pattern in patterns or [""]]), {}, order)
    return [item.name.removeprefix(f"file://{tmp_path}/") for item in listing.files()]


def test_files_are_found_at_any_depth_in_the_order_of_their_paths(tmp_path, write):
    write("b", "day=2/b", "day=10/a", "a")
    assert listed(tmp_path) == ["a", "b", "day=10/a", "day=2/b"]


def test_hidden_and_empty_files_are_left_out(tmp_path, write):
    write("_SUCCESS", ".crc", "_temporary/0/a", ".hidden/a", "x._COPYING_", "k=1/_committed", "_k=1/seen", "a_b.c")
    write("empty", content="")
    assert listed(tmp_path) == ["_k=1/seen", "a_b.c"]


def test_the_oldest_files_come_first_where_the_user_says_so(tmp_path, write):
    write("new", age=1)
    write("old", "also_old", age=9)
    assert listed(tmp_path, order="mtime") == ["also_old", "old", "new"]


def test_a_pattern_chooses_files_and_directories(tmp_path, write):
    write("a.csv", "b.txt", "year=1/a.csv", "year=2/deep/b.csv", "other/a.csv")
    assert listed(tmp_path, "*.csv") == ["a.csv"]
    assert listed(tmp_path, "year=*") == ["year=1/a.csv", "year=2/deep/b.csv"]


def test_one_file_is_a_place_too_and_no_file_is_listed_twice(tmp_path, write):
    write("x/a", "x/b")
    assert listed(tmp_path, "x/a") == ["x/a"]
    assert listed(tmp_path, "x", "x/b", "*/a") == ["x/a", "x/b"]


def test_a_missing_place_has_no_files(tmp_path):
    assert listed(tmp_path, "nowhere") == []


def test_names_are_taken_as_they_stand(tmp_path, write):
    write("sp ace%20[1].x", "k=a%2Fb/{y}*", "end /a ")
    assert listed(tmp_path) == ["end /a ", "k=a%2Fb/{y}*", "sp ace%20[1].x"]
    assert listed(tmp_path, "end ", "end /a ") == ["end /a "]


def test_a_second_look_finds_what_vanished_and_what_changed(tmp_path, write):
    write("same", "gone", "grown", "rewritten", age=5)
    listing = FileListing(parse_paths(tmp_path), {})
    before = listing.files()
    (tmp_path / "gone").unlink()
    write("grown", content="xx", age=5)
    write("rewritten", content="y", age=4)
    changes = listing.changes(before)
    assert [item.name.rpartition("/")[2] for item in changes.vanished] == ["gone"]
    assert [item.name.rpartition("/")[2] for item in changes.changed] == ["grown", "rewritten"]


def test_a_second_look_at_unchanged_files_finds_nothing(tmp_path, write):
    write("a", "b/c")
    listing = FileListing(parse_paths(tmp_path), {})
    assert not listing.changes(listing.files())


def test_a_link_is_the_file_that_it_leads_to(tmp_path, write):
    write("elsewhere/a", age=5)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    listing = FileListing(parse_paths(tmp_path / "in"), {})
    before = listing.files()
    assert not listing.changes(before)
    write("elsewhere/a", content="y", age=4)
    assert listing.changes(before).changed == listing.files() != before


def test_a_link_that_leads_to_no_file_is_refused_unless_it_is_left_out(tmp_path, write):
    write("day=1/a")
    (tmp_path / "latest").symlink_to("day=1")
    (tmp_path / "lost").symlink_to("gone")
    with pytest.raises(InvalidConfigurationError, match=r"latest, a link to directory; add the directory itself"):
        listed(tmp_path, "la*")
    with pytest.raises(InvalidConfigurationError, match=r"lost, a link to nothing; .*restore what the link leads to"):
        listed(tmp_path, "lo*")
    assert listed(tmp_path, "day=*") == ["day=1/a"]
    assert listed(tmp_path, "latest/") == ["latest/a"]


@pytest.mark.parametrize("name", ["../secret", "part/../../secret", "..", ""])
def test_a_file_that_state_names_elsewhere_is_not_looked_at(tmp_path, write, name):
    write("part/a", "part/b")
    listing = FileListing(parse_paths([f"{tmp_path}/part"]), {})
    [item, _] = listing.files()
    foreign = replace(item, name=f"file://{tmp_path}/part/{name}" if name else f"file://{tmp_path}/secret")
    with pytest.raises(LocationNotAllowedError, match="not opened"):
        listing.changes([foreign])


def test_the_files_of_an_object_store_keep_their_versions(object_store):
    listing = FileListing(parse_paths(f"s3://{object_store.bucket}/sources/"), object_store.storage_options)
    client = fsspec.filesystem("s3", **object_store.storage_options)
    for name in ("a", "k=1/b", "_hidden"):
        client.pipe_file(f"{object_store.bucket}/sources/{name}", b"x")
    before = listing.files()
    assert [item.name for item in before] == [f"s3://{object_store.bucket}/sources/{name}" for name in ("a", "k=1/b")]
    assert not listing.changes(before)
    client.pipe_file(f"{object_store.bucket}/sources/a", b"y")
    assert [item.name[-1] for item in listing.changes(before).changed] == ["a"]
    assert [item.digest != old.digest for item, old in zip(listing.files(), before, strict=True)] == [True, False]


def test_a_bucket_that_is_missing_is_an_error_and_no_empty_source(object_store):
    listing = FileListing(parse_paths("s3://no-such-bucket-of-ours/x"), object_store.storage_options)
    with pytest.raises(StorageError, match="cannot be listed"):
        listing.files()


def test_credentials_are_in_no_message(object_store):
    options = {**object_store.storage_options, "secret": "wrong-secret-of-somebody"}
    with pytest.raises((StorageError, InvalidConfigurationError)) as raised:
        FileListing(parse_paths("s3://no-such-bucket-of-ours/x"), options).files()
    assert "wrong-secret-of-somebody" not in str(raised.value)


@pytest.mark.parametrize(
    "time",
    [1_000, 1_000.0, datetime.fromtimestamp(1_000, UTC), datetime(1970, 1, 1, 0, 16, 40), "1970-01-01T00:16:40Z"],  # noqa: DTZ001
)
def test_filesystems_tell_times_in_different_ways(tells, time):
    tells({"/a": {"size": 1, "LastModified": time}, "/b": {"size": 1, "mtime": 1_001}, "/c": {"size": 1, "mtime": 999}})
    assert [item.name for item in OLDEST_FIRST.files()] == ["memory:///c", "memory:///a", "memory:///b"]


def test_a_filesystem_without_times_has_no_oldest_file(tells):
    tells({"/a": {"size": 1}})
    with pytest.raises(InvalidConfigurationError, match="order='path'"):
        OLDEST_FIRST.files()


def test_a_filesystem_without_sizes_is_refused(tells):
    tells({"/a": {"size": None, "mtime": 1}})
    with pytest.raises(InvalidConfigurationError, match="reports the sizes of files"):
        OLDEST_FIRST.files()


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


@pytest.mark.parametrize("path", ["../b", "../b/*", "file://{0}/a/../b"])
def test_files_of_a_path_with_dots_are_below_it(monkeypatch, tmp_path, write, path):
    write("a/x", "b/y")
    monkeypatch.chdir(tmp_path / "a")
    listing = FileListing(parse_paths(path.format(tmp_path)), {})
    [item] = listing.files()
    assert (item.name, listing.root_of(item.name)) == (f"file://{tmp_path}/b/y", f"file://{tmp_path}/b")


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
        ("a**c", "abc", True),
        ("a**c", "ab/c", False),
        ("a[.csv", "a[.csv", True),
    ],
)
def test_a_star_stays_within_a_name_and_two_stars_do_not(pattern, below, chosen):
    assert SourcePath("file:///r", pattern).matches(below) is chosen


def test_without_a_pattern_everything_is_meant():
    assert SourcePath("file:///r").matches("x/y/z")


def bases(paths, *names):
    listing = FileListing(tuple(paths), {})
    return [listing.base_of(f"file:///in/{name}") for name in names]


def test_columns_are_in_directories_below_the_path_or_below_its_part_without_a_pattern():
    names = ["day=1/a", "x/day=1/a"]
    assert bases(parse_paths("/in"), *names) == ["file:///in"] * 2
    assert bases(parse_paths("/in/*"), *names) == ["file:///in"] * 2
    assert bases(parse_paths("/in/day=1/a"), names[0]) == [""]


def test_columns_of_a_scan_by_spark_are_below_what_its_pattern_matches_or_below_its_base():
    (path,) = parse_paths("/in/*")
    names = ["day=1/hour=2/a", "x/day=1/a", "a"]
    assert bases([replace(path, is_expanded=True)], *names) == ["file:///in/day=1", "file:///in/x", ""]
    assert bases([replace(path, base="file:///in", is_expanded=True)], *names) == ["file:///in"] * 3
    assert bases([replace(path, base="")], *names) == [""] * 3


def test_what_the_pattern_of_a_scan_matches_is_read_even_if_it_is_a_hidden_directory(tmp_path, write):
    write("_old/a", "_old/_b", "x/a", "_c", ".d/a")
    (path,) = parse_paths(f"{tmp_path}/*")
    assert names_of(FileListing((replace(path, is_expanded=True),), {}), tmp_path) == [".d/a", "_old/a", "x/a"]
    assert names_of(FileListing((path,), {}), tmp_path) == ["x/a"]
    assert names_of(FileListing(parse_paths([f"{tmp_path}/_old", f"{tmp_path}/_c"]), {}), tmp_path) == ["_old/a"]


def names_of(listing, folder):
    return [item.name.removeprefix(f"file://{folder}/") for item in listing.files()]


def test_a_pattern_excludes_characters_as_in_hadoop():
    assert not SourcePath("file:///in", "[^ab]*").matches("a.parquet")
    assert SourcePath("file:///in", "[^ab]*").matches("c.parquet")
