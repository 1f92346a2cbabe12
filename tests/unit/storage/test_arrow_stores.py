"""Object stores that PyArrow serves where their own fsspec package is not installed: options, paths and errors."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pyarrow.fs
import pytest
from fsspec.registry import _registry

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.arrow_stores import (
    STORES,
    ArrowGcs,
    ArrowS3,
    MissingBucketError,
    UnsupportedConditionError,
)
from airflow_provider_statecheck.storage.failures import RetryPolicy, is_missing_bucket, is_unsupported
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import EXTRAS, arrow_store, open_filesystem, serves

SECRET = "wJalr/secret+key"
REGION = {"client_kwargs": {"region_name": "eu-north-1"}}
CLASSES = {"s3fs": "S3FileSystem", "gcsfs": "GcsFileSystem", "adlfs": "AzureFileSystem"}


def s3(**options: Any) -> Any:
    """Return the arguments that PyArrow's filesystem was made with."""
    filesystem = ArrowS3(**{**REGION, **options}, skip_instance_cache=True)
    return filesystem.fs.__reduce__()[1][0]


@pytest.fixture(params=STORES)
def hidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Scheme whose fsspec package is not installed."""
    scheme: str = request.param
    monkeypatch.setitem(sys.modules, STORES[scheme].package, None)
    monkeypatch.delitem(_registry, scheme, raising=False)
    return scheme


NEEDED: dict[str, dict[str, Any]] = {"s3": REGION, "s3a": REGION, "gs": {"token": "anon"}, "gcs": {"token": "anon"}}


class TestChoice:
    def test_pyarrow_serves_a_store_whose_package_is_missing(self, hidden: str) -> None:
        options = NEEDED.get(hidden, {"account_name": "account"})
        filesystem = open_filesystem(f"{hidden}://bucket/ck", options)
        assert type(filesystem) is STORES[hidden]
        assert serves(filesystem, f"{hidden}://bucket/ck", f"{hidden}://bucket/other")

    def test_names_of_files_are_kept_as_they_are(self, hidden: str) -> None:
        uri = f"{hidden}://bucket/a b/c#d?e%20"
        storage = CheckpointStorage.open(f"{hidden}://bucket/a b", **NEEDED.get(hidden, {"account_name": "account"}))
        assert storage.locate(uri)[1] == "bucket/a b/c#d?e%20"

    def test_the_package_serves_it_where_it_is_installed(self) -> None:
        assert type(open_filesystem("s3://bucket/ck", {"anon": True})).__module__.startswith("s3fs")

    def test_the_choice_is_logged_with_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        monkeypatch.delitem(_registry, "s3a", raising=False)
        arrow_store.cache_clear()
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                open_filesystem("s3a://bucket/ck", REGION)
        [record] = [each for each in caplog.records if "PyArrow" in each.message]
        assert "no conditional create" in record.message

    def test_without_either_the_extra_is_named(self, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(pyarrow.fs, CLASSES[STORES[hidden].package])
        expected = rf"pip install 'airflow-provider-statecheck\[{EXTRAS[hidden]}\]'"
        options = NEEDED.get(hidden, {"account_name": "account"})
        with pytest.raises(InvalidConfigurationError, match=expected):
            open_filesystem(f"{hidden}://bucket/ck", {**options, "skip_instance_cache": True})

    def test_its_package_and_its_extra_belong_together(self) -> None:
        assert {scheme: kind.extra for scheme, kind in STORES.items()} == EXTRAS


class TestOptionsOfS3:
    def test_credentials_and_the_endpoint_have_the_same_meaning(self) -> None:
        found = s3(key="KEY", secret=SECRET, token="session", endpoint_url="http://store:9000/")
        assert (found["access_key"], found["secret_key"], found["session_token"]) == ("KEY", SECRET, "session")
        assert (found["scheme"], found["endpoint_override"]) == ("http", "store:9000")
        assert found["region"] == "eu-north-1"

    def test_other_names_of_them_do_too(self) -> None:
        found = s3(username="KEY", password=SECRET, client_kwargs={"region_name": "us-west-2", "verify": True})
        assert (found["access_key"], found["secret_key"], found["region"]) == ("KEY", SECRET, "us-west-2")

    def test_without_credentials_it_reads_what_is_public(self) -> None:
        assert s3(anon=True)["anonymous"]
        assert not s3(anon=False)["anonymous"]

    @pytest.mark.parametrize("options", [{"use_ssl": False}, {"endpoint_url": "http://store:9000", "use_ssl": True}])
    def test_the_scheme_of_the_endpoint_decides_on_encryption(self, options: dict[str, Any]) -> None:
        assert s3(**options)["scheme"] == "http"

    def test_deadlines_and_addresses_are_kept(self) -> None:
        config = {
            "signature_version": "s3v4",
            "connect_timeout": 5,
            "read_timeout": 2,
            "s3": {"addressing_style": "virtual"},
        }
        found = s3(config_kwargs={**config, "retries": {"total_max_attempts": 2}})
        assert (found["connect_timeout"], found["request_timeout"]) == (5.0, 2.0)
        assert found["force_virtual_addressing"]

    def test_an_option_that_is_none_is_not_given(self) -> None:
        assert not s3(key=None, profile=None)["access_key"]

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"profile": "batch"}, "has no profile;"),
            ({"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}}, "has no s3_additional_kwargs;"),
            ({"requester_pays": True, "version_aware": True}, "has no requester_pays, version_aware;"),
            ({"config_kwargs": {"proxies": {"https": "p"}}}, "has no config_kwargs.proxies;"),
            ({"config_kwargs": {"signature_version": "s3"}}, "signs requests with s3v4 only"),
            ({"client_kwargs": {"verify": False}}, "verifies certificates always"),
            ({"endpoint_url": "store:9000"}, "Expected endpoint_url to be a URL"),
            ({"session": SECRET, "secret": SECRET}, "has no session;"),
        ],
    )
    @pytest.mark.parametrize("hidden", ["s3"], indirect=True)
    def test_an_option_without_a_counterpart_is_refused_by_name(
        self, hidden: str, options: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(InvalidConfigurationError, match=named) as caught:
            open_filesystem(f"{hidden}://bucket/ck", {**REGION, **options})
        assert SECRET not in str(caught.value)
        assert "PyArrow" in str(caught.value) or "endpoint_url" in str(caught.value)


class TestOptionsOfOtherStores:
    def test_google_finds_the_credentials_of_the_machine(self) -> None:
        found = ArrowGcs(token="google_default", project="lake", skip_instance_cache=True)
        assert found.fs.project_id == "lake"

    def test_google_is_given_up_by_its_client_before_the_storage_gives_up(self) -> None:
        found = ArrowGcs(token="anon", skip_instance_cache=True).fs.__reduce__()[1][0]
        assert found["retry_time_limit"].total_seconds() < RetryPolicy().deadline_seconds

    def test_google_takes_no_other_token(self) -> None:
        with pytest.raises(ValueError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            ArrowGcs(token={"private_key": SECRET}, skip_instance_cache=True)
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize("hidden", ["abfss"], indirect=True)
    def test_the_account_of_azure_is_in_the_uri_or_in_the_options(self, hidden: str) -> None:
        uri = f"{hidden}://container@lake.dfs.core.windows.net/ck"
        filesystem, path = CheckpointStorage.open(uri).locate(uri)
        assert (filesystem.storage_options["account_name"], path) == ("lake", "container/ck")
        with pytest.raises(InvalidConfigurationError, match="Expected the account in the URI"):
            open_filesystem(f"{hidden}://container/ck", {})


class TestErrors:
    def test_a_missing_file_is_told_without_the_right_to_ask_for_its_bucket(self, monkeypatch) -> None:
        filesystem = ArrowS3(skip_instance_cache=True, client_kwargs={"region_name": "eu-north-1"})

        class Denying:
            def get_file_info(self, asked: Any) -> Any:
                if asked == "bucket":
                    raise OSError("AWS Error ACCESS_DENIED during HeadBucket operation")
                return [pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.NotFound) for path in asked]

        monkeypatch.setattr(filesystem, "fs", Denying())
        with pytest.raises(FileNotFoundError):
            filesystem.info("bucket/ck/_metadata")

    def test_a_condition_is_unsupported_and_writes_nothing(self) -> None:
        with pytest.raises(UnsupportedConditionError) as caught:
            ArrowS3(client_kwargs={"region_name": "eu-north-1"}).pipe_file("bucket/f", b"x", mode="create")
        assert is_unsupported(caught.value)

    def test_a_missing_bucket_is_told_apart(self) -> None:
        assert is_missing_bucket(MissingBucketError("no bucket"))
