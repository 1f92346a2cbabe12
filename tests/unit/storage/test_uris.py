"""Directories as URIs, what may be deleted, and which places may be read when a checkpoint names files in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, LocationNotAllowedError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations, parse_locations
from airflow_provider_statecheck.storage.uris import (
    deletable_root,
    normalise_base,
    normalise_pointer,
    normalise_savepoint_dir,
    redact,
)

JOB = "0123456789abcdef" * 2
OPERATOR = "fedcba9876543210" * 2
BASE = "s3://bucket/checkpoints"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/data/ck", "file:///data/ck"),
        ("/data/ck///", "file:///data/ck"),
        ("file:///data/ck/", "file:///data/ck"),
        ("local:///data/ck", "file:///data/ck"),
        ("/data/x/../ck", "file:///data/ck"),
        ("s3://bucket/ck/", "s3://bucket/ck"),
        ("S3://Bucket/ck", "s3://Bucket/ck"),
        ("s3://bucket", "s3://bucket"),
        ("memory://a/b", "memory://a/b"),
        ("hdfs:///data/ck", "hdfs:///data/ck"),
        ("hdfs://name:8020/data/ck/", "hdfs://name:8020/data/ck"),
        ("  /data/ck ", "file:///data/ck"),
    ],
)
def test_base_becomes_absolute_uri_without_slash_at_its_end(given: str, expected: str) -> None:
    assert normalise_base(given) == expected
    assert normalise_base(expected) == expected


def test_relative_path_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_base("ck") == f"file://{tmp_path}/ck"
    assert normalise_base("./s3:odd") == f"file://{tmp_path}/s3:odd"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert normalise_base("~/ck") == f"file://{tmp_path}/ck"


def test_path_object_is_a_path(tmp_path: Path) -> None:
    assert normalise_base(tmp_path) == f"file://{tmp_path}"


@pytest.mark.parametrize("text", ["/data/my files/100%/é", "/data/a%20b"])
def test_nothing_is_percent_encoded_or_decoded(text: str) -> None:
    """Neither fsspec nor Hadoop decodes, so an encoded path would be another directory."""
    assert normalise_base(text) == f"file://{text}" == normalise_base(f"file://{text}")


@pytest.mark.parametrize(
    "given",
    ["", "   ", None, 5, "/", "file:///", "s3://", "s3:///", "memory://", "file://data/ck", "file:/data/ck", "s3:/b/ck",
     "simplecache::s3://b/ck", "s3://b/../c", "s3://b//c", "s3://b/./c", "s3://b/x*", "/data/[a]", "/data/{a}",
     "/data/a?", "/data/a\0b", "s3://b/a\0", f"/data/{'x' * 256}", f"file:///data/{'é' * 128}/ck"],
)  # fmt: skip
def test_base_that_names_no_directory_for_sure_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected checkpoint_dir to be"):
        normalise_base(given)


def test_refusal_shows_no_password() -> None:
    with pytest.raises(InvalidConfigurationError) as caught:
        normalise_base("s3://key:secret@bucket/*")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("s3://key@bucket/a", "s3://***@bucket/a"),
        ("s3://key:p@ss@bucket/a", "s3://***@bucket/a"),
        ("s3://key:with/slash@bucket/a", "s3://***@bucket/a"),
        ("s3://bucket/dir@v1/a", "s3://bucket/dir@v1/a"),
        ("hdfs://name:8020/user@realm/a", "hdfs://name:8020/user@realm/a"),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss://lake@account.dfs.core.windows.net/a"),
        ("hdfs://anna@name:8020/a", "hdfs://anna@name:8020/a"),
        ("webhdfs://anna@name:9870/a", "webhdfs://anna@name:9870/a"),
        ("hdfs://anna:secret@name:8020/a", "hdfs://***@name:8020/a"),
        ("abfs://lake:secret@account/a", "abfs://***@account/a"),
        ("abfs://lake@key:secret@account/a", "abfs://***@account/a"),
        ("failed at 's3://k:s@b/x' twice", "failed at 's3://***@b/x' twice"),
        ("s3://[not-an-address/x", "s3://[not-an-address/x"),
        ("no uri", "no uri"),
        ("s3://b/a?api_key=s3cret&x=1", "s3://b/a?api_key=***&x=1"),
        ("s3://b/a?sas_token=s3cret", "s3://b/a?sas_token=***"),
        ("https://h/a?SharedAccessKey=s3cret#part", "https://h/a?SharedAccessKey=***#part"),
        ("https://h/a?sv=2026&sig=s3cret", "https://h/a?sv=2026&sig=***"),
        ("https://h/a#access_token=s3cret&state=5", "https://h/a#access_token=***&state=5"),
        ("https://h/a?X-Goog-Credential=s3cret", "https://h/a?X-Goog-Credential=***"),
        ("https://h/a?pass%77ord=s3cret", "https://h/a?pass%77ord=***"),
        (
            "jdbc:sqlserver://h:1433;user=sa;password=s3cret;encrypt=true",
            "jdbc:sqlserver://h:1433;user=sa;password=***;encrypt=true",
        ),
        ("https://h/a?key=s3cret", "https://h/a?key=***"),
        ("s3://lake/day=2026-01-01/key=5/part", "s3://lake/day=2026-01-01/key=5/part"),
        ("https://h/a?page=5&design=new", "https://h/a?page=5&design=new"),
    ],
)
def test_redacted_text_has_no_credentials(given: str, shown: str) -> None:
    assert redact(given) == shown


@pytest.mark.parametrize(
    "place", [f"{JOB}/chk-1", f"{JOB}/shared/{OPERATOR}/raw/1-a", "savepoint-5d2c4a-0f6f7c1e2b3a/more"]
)
def test_savepoints_are_in_no_directory_that_is_deleted_with_another_snapshot(place: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="with which they would be deleted"):
        normalise_savepoint_dir(f"{BASE}/{place}")
    assert normalise_savepoint_dir(f"{BASE}/savepoints/") == f"{BASE}/savepoints"


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "az", "hdfs"])
def test_a_savepoint_may_be_in_a_container_of_azure_or_belong_to_a_user_of_hdfs(scheme: str) -> None:
    uri = f"{scheme}://lake@account.dfs.core.windows.net/savepoints"
    assert normalise_pointer(uri) == uri


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        (f"{BASE}/{JOB}/chk-1", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/chk-1/_metadata", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/_orphans", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/shared/{OPERATOR}/raw/1-a", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/shared/{OPERATOR}/raw/1-a/data", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/shared/{OPERATOR}/raw/savepoint-5d2c4a-0f6f7c1e2b3a", f"{BASE}/{JOB}"),
        (f"{BASE}/{JOB}/chk-1/", f"{BASE}/{JOB}"),
        (f"{BASE}/chk-1/f", BASE),
        (f"{BASE}/savepoint-5d2c4a-0f6f7c1e2b3a", f"{BASE}/savepoint-5d2c4a-0f6f7c1e2b3a"),
        (f"{BASE}/a/b/savepoint-5d2c4a-0f6f7c1e2b3a/f", f"{BASE}/a/b/savepoint-5d2c4a-0f6f7c1e2b3a"),
        (f"s3://other/base/{JOB}/chk-1", f"s3://other/base/{JOB}"),
        ("s3://other/savepoint-5d2c4a-0f6f7c1e2b3a/f", "s3://other/savepoint-5d2c4a-0f6f7c1e2b3a"),
        (f"file:///data/{JOB}/chk-1", f"file:///data/{JOB}"),
        (f"memory:///data/{JOB}/chk-1", f"memory:///data/{JOB}"),
    ],
)
def test_checkpoint_or_snapshot_and_what_is_in_it_may_be_deleted_from_the_directory_of_its_job(
    uri: str, root: str
) -> None:
    assert deletable_root(uri, BASE) == root


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/",
        "file:///",
        "s3://bucket",
        BASE,
        f"{BASE}/",
        f"{BASE}/{JOB}",
        f"{BASE}/{JOB}/",
        f"{BASE}/{JOB}//",
        f"{BASE}/{JOB}//chk-1",
        f"{BASE}/{JOB}/.",
        f"{BASE}/{JOB}/..",
        f"{BASE}/{JOB}/chk-1/..",
        f"{BASE}/{JOB}/../../other",
        f"{BASE}/{JOB}/*",
        f"{BASE}/{JOB}/other",
        f"{BASE}/{JOB}/chk-",
        f"{BASE}/{JOB}/chk-x",
        f"{BASE}/{JOB}/chk-1x",
        f"{BASE}/{JOB}/shared",
        f"{BASE}/{JOB}/shared/{OPERATOR}",
        f"{BASE}/{JOB}/shared/{OPERATOR}/raw",
        f"{BASE}/{JOB}/shared/op/raw/1-a",
        f"{BASE}/{JOB}/taskowned",
        f"{BASE}/{JOB}/chk-[12]",
        f"{BASE}/{JOB}/chk-1/*",
        f"{BASE}/{JOB}/shared/{OPERATOR}/r*w/1-a",
        f"s3://other/b[a]se/{JOB}/chk-1",
        f"{BASE}/{JOB.upper()}/chk-1",
        f"{BASE}/{JOB[1:]}/chk-1",
        f"{BASE}/{JOB}0/chk-1",
        f"{BASE}/not-a-job/{JOB}/chk-1",
        f"{BASE}x",
        f"/data/{JOB}/chk-1/../..",
        "s3://bucket/elsewhere/chk-1",
    ],
)
def test_anything_else_may_not_be_deleted(uri: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
        deletable_root(uri, BASE)


@pytest.mark.parametrize("base", [f"s3://b/{JOB}/chk-1/ck", f"s3://b/{JOB}/shared/{OPERATOR}/a/b/ck"])
def test_base_that_lies_in_a_place_like_a_checkpoint_is_never_deleted(base: str) -> None:
    for uri in (base, base.rpartition("/")[0], f"{base}/{JOB}", f"{base}/other", f"s3://b/{JOB}/chk-1/.."):
        with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
            deletable_root(uri, base)
    deletable_root(f"{base}/{JOB}/chk-1", base)


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
    assert places.places == ("s3://lake/",)


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
