from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import normalise_base, normalise_pointer, redact, require_deletable

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
     "simplecache::s3://b/ck", "s3://b/../c", "s3://b//c", "s3://b/./c", "s3://b/x*", "/data/[a]", "/data/{a}", "/data/a?",
     "/data/a\0b", "s3://b/a\0", f"/data/{'x' * 256}", f"file:///data/{'é' * 128}/ck"],
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
        ("abfs://lake:secret@account/a", "abfs://***@account/a"),
        ("abfs://lake@key:secret@account/a", "abfs://***@account/a"),
        ("failed at 's3://k:s@b/x' twice", "failed at 's3://***@b/x' twice"),
        ("s3://[not-an-address/x", "s3://[not-an-address/x"),
        ("no uri", "no uri"),
    ],
)
def test_redacted_text_has_no_credentials(given: str, shown: str) -> None:
    assert redact(given) == shown


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "az"])
def test_a_savepoint_may_be_in_a_container_of_azure(scheme: str) -> None:
    uri = f"{scheme}://lake@account.dfs.core.windows.net/savepoints"
    assert normalise_pointer(uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        f"{BASE}/{JOB}/chk-1",
        f"{BASE}/{JOB}/chk-1/_metadata",
        f"{BASE}/{JOB}/shared/{OPERATOR}/raw/1-a",
        f"{BASE}/{JOB}/shared/{OPERATOR}/raw/1-a/data",
        f"{BASE}/{JOB}/chk-1/",
        f"s3://other/base/{JOB}/chk-1",
        f"file:///data/{JOB}/chk-1",
        f"memory:///data/{JOB}/chk-1",
    ],
)
def test_checkpoint_or_snapshot_and_what_is_in_it_may_be_deleted(uri: str) -> None:
    require_deletable(uri, BASE)


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
        require_deletable(uri, BASE)


@pytest.mark.parametrize("base", [f"s3://b/{JOB}/chk-1/ck", f"s3://b/{JOB}/shared/{OPERATOR}/a/b/ck"])
def test_base_that_lies_in_a_place_like_a_checkpoint_is_never_deleted(base: str) -> None:
    for uri in (base, base.rpartition("/")[0], f"{base}/{JOB}", f"{base}/other", f"s3://b/{JOB}/chk-1/.."):
        with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
            require_deletable(uri, base)
    require_deletable(f"{base}/{JOB}/chk-1", base)
