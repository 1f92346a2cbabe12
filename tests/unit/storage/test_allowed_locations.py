"""Which places may be read when a checkpoint names files in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import AllowedLocation, AllowedLocations, parse_locations

JOB = "0" * 32


@pytest.mark.parametrize(
    ("directory", "uri"),
    [
        ("s3://lake/checkpoints", "s3://lake/anything/else"),
        ("s3://lake/checkpoints", "s3a://lake/checkpoints/x"),
        ("gs://lake/ck", "gcs://lake/ck/x"),
        ("abfs://c@account/ck", "abfss://c@account/other"),
        ("hdfs://name:9000/ck", "hdfs://name:9000/other/x"),
        ("hdfs:///ck", "hdfs:///other/x"),
        ("file:///data/ck", "file:///data/ck/job/x"),
        ("file:///data/ck", "local:///data/ck/x"),
        ("file:///data/ck", "file:///data/ck/a/../b"),
        (f"file:///data/{JOB}/chk-7", f"file:///data/{JOB}/shared/x"),
        (f"file:///data/{JOB}/chk-7/_metadata", f"file:///data/{JOB}/shared/x"),
        ("file:///data/savepoint-1/_metadata", "file:///data/savepoint-1/shared/x"),
    ],
)
def test_what_shares_the_storage_of_a_directory_that_was_named_may_be_read(directory: str, uri: str) -> None:
    AllowedLocations().around(directory).require(uri)


@pytest.mark.parametrize(
    ("directory", "uri"),
    [
        ("s3://lake/checkpoints", "s3://other/checkpoints/x"),
        ("s3://lake/checkpoints", "s3://lake.evil/checkpoints/x"),
        ("s3://lake/checkpoints", "s3:///other/x"),
        ("s3://lake/checkpoints", "s3://lake/a/../../x"),
        ("s3://lake/checkpoints", "http://lake/checkpoints/x"),
        ("s3://lake/checkpoints", "file:///etc/passwd"),
        ("webhdfs://name:1/ck", "webhdfs://name:2/ck/x"),
        ("abfs://c@account/ck", "abfs://c@other/ck/x"),
        ("file:///data/ck", "file:///etc/passwd"),
        ("file:///data/ck", "file:///data/ck-other/x"),
        ("file:///data/ck", "file:///data/ck/../../etc/passwd"),
        ("file:///data/ck", "file://data/ck/x"),
        ("file:///data/ck", "/data/ck/x"),
        ("file:///data/ck", "file:///data/ck/\0"),
        ("file:///data/savepoint-1", "file:///data/x"),
        ("file:///chk-7", "file:///etc/passwd"),
    ],
)
def test_anything_else_is_refused(directory: str, uri: str) -> None:
    with pytest.raises(LocationNotAllowedError):
        AllowedLocations().around(directory).require(uri)


def test_a_link_leads_no_further_than_its_target(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "link").symlink_to("/etc")
    (tmp_path / "same").symlink_to(tmp_path / "ck")
    places = AllowedLocations().around(f"file://{tmp_path}/same")
    places.require(f"file://{tmp_path}/ck/x")
    with pytest.raises(LocationNotAllowedError):
        places.require(f"file://{tmp_path}/same/link/passwd")


def test_the_error_names_the_uri_the_places_and_the_setting_without_secrets() -> None:
    with pytest.raises(LocationNotAllowedError) as caught:
        AllowedLocations().around("s3://lake/ck").require("ftp://ann:hush@host/x?token=hush")
    assert "ftp://***@host/x?token=***" in str(caught.value)
    assert "s3://lake" in str(caught.value)
    assert "allowed_locations" in str(caught.value)
    assert "hush" not in str(caught.value) + repr(vars(caught.value))


def test_the_setting_counts_the_path_too() -> None:
    places = AllowedLocations().below("s3://archive/old", "s3://all")
    places.require("s3://archive/old/x")
    places.require("s3://all/x")
    with pytest.raises(LocationNotAllowedError):
        places.require("s3://archive/other")


@pytest.mark.parametrize("value", ["s3://a, file:///b,", ["s3://a", " file:///b "]])
def test_the_setting_is_a_list_or_text_with_commas(value: object) -> None:
    assert parse_locations(value) == ("s3://a", "file:///b")


@pytest.mark.parametrize("value", ["/data", "lake", "file:", "file://host/x", ["s3"]])
def test_what_is_no_uri_is_refused_by_the_name_of_the_setting(value: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="allowed_locations"):
        parse_locations(value)


def test_a_place_that_is_known_is_not_listed_again() -> None:
    places = AllowedLocations().around("s3://lake/ck")
    assert places.around("s3://lake/other", None) is places
    assert str(AllowedLocation.below("s3://lake")) == "s3://lake"


@pytest.mark.parametrize(
    "read",
    [
        lambda storage, uri: storage.read_bytes(uri),
        lambda storage, uri: storage.read_range(uri, 0, 1),
        lambda storage, uri: storage.read_verified(uri, size=1, sha256=""),
        lambda storage, uri: storage.exists(uri),
        lambda storage, uri: storage.is_directory(uri),
        lambda storage, uri: storage.size(uri),
        lambda storage, uri: storage.list_files(uri),
        lambda storage, uri: storage.list_directories(uri),
        lambda storage, uri: storage.copy_file(uri, f"{storage.base_uri}/{JOB}/chk-1/x"),
        lambda storage, uri: storage.copy_directory(uri, f"{storage.base_uri}/{JOB}/chk-1"),
    ],
)
def test_a_storage_reads_in_its_places_only(tmp_path: Path, read: object) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    storage = CheckpointStorage.open(f"{tmp_path}/base")
    with pytest.raises(LocationNotAllowedError):
        read(storage, f"file://{tmp_path}/other/file")  # type: ignore[operator]
    assert not (tmp_path / "base").exists()


def test_more_places_belong_to_a_storage_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    storage = CheckpointStorage.open(f"{tmp_path}/base")
    wider = storage.allowing(f"file://{tmp_path}/other")
    assert wider.read_bytes(f"file://{tmp_path}/other/file") == b"x"
    with pytest.raises(LocationNotAllowedError):
        storage.read_bytes(f"file://{tmp_path}/other/file")
