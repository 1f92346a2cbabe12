from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import airflow.sdk.io
import pytest
from airflow.models.connection import Connection
from airflow.sdk.io import fs as airflow_filesystems
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.connection import open_storage

SECRET = "wJalr/secret+key"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make a connection and return its id."""

    def make(**fields: Any) -> str:
        connection = Connection(conn_id="bucket", conn_type="generic", **fields)
        monkeypatch.setenv("AIRFLOW_CONN_BUCKET", connection.as_json())
        return "bucket"

    return make


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", found.append)
    return found


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Have a provider that makes a filesystem for a scheme."""
    known = dict(airflow_filesystems._register_filesystems())
    monkeypatch.setattr(airflow_filesystems, "_register_filesystems", lambda: known)

    def provide(scheme: str, make: Any) -> None:
        known[scheme] = make

    return provide


def test_local_paths_need_no_connection(tmp_path: Path) -> None:
    assert open_storage(str(tmp_path), "no-such-connection").base_uri == tmp_path.as_uri()
    assert open_storage(str(tmp_path)).is_local


def test_without_a_connection_the_filesystem_finds_its_own_credentials() -> None:
    assert dict(open_storage("memory://ck").options) == {}


def test_options_in_the_extra_are_taken_and_masked(connect, masked: list[object]) -> None:
    options = {"token": SECRET, "skip_instance_cache": True}
    storage = open_storage("memory://ck", connect(extra=json.dumps({"storage_options": options})))
    assert storage.options == options
    assert SECRET in masked
    assert SECRET not in repr(storage)


def test_options_that_are_no_object_are_refused_without_their_value(connect) -> None:
    with pytest.raises(InvalidConfigurationError, match="found a str") as caught:
        open_storage("memory://ck", connect(extra=json.dumps({"storage_options": SECRET})))
    assert SECRET not in str(caught.value)


def test_a_missing_connection_is_named() -> None:
    with pytest.raises(InvalidConfigurationError, match="'nowhere'"):
        open_storage("memory://ck", "nowhere")


@pytest.mark.parametrize(
    ("scheme", "package"),
    [
        ("s3", "apache-airflow-providers-amazon"),
        ("s3a", "apache-airflow-providers-amazon"),
        ("gs", "apache-airflow-providers-google"),
        ("abfs", "apache-airflow-providers-microsoft-azure"),
        ("az", "apache-airflow-providers-microsoft-azure"),
    ],
)
def test_a_scheme_without_its_provider_names_the_package(connect, scheme: str, package: str, monkeypatch) -> None:
    monkeypatch.setattr(airflow.sdk.io, "has_fs", lambda _: False)  # also where the provider is installed
    with pytest.raises(InvalidConfigurationError, match=rf"install {package}.*storage_options"):
        open_storage(f"{scheme}://bucket/ck", connect())


def test_a_scheme_that_no_provider_has_asks_for_options(connect) -> None:
    with pytest.raises(InvalidConfigurationError, match="found none; set storage_options"):
        open_storage("memory://ck", connect())


def test_options_come_from_the_filesystem_that_airflow_makes(connect, provided, masked: list[object]) -> None:
    provided("memory", lambda conn_id, options: MemoryFileSystem(token=SECRET, project=None, skip_instance_cache=True))
    assert dict(open_storage("memory://ck", connect()).options) == {"token": SECRET}
    assert [each for each in masked if isinstance(each, str)] == [SECRET]


def test_an_option_that_only_this_process_can_use_is_refused(connect, provided) -> None:
    provided("memory", lambda conn_id, options: MemoryFileSystem(credential=object(), skip_instance_cache=True))
    with pytest.raises(InvalidConfigurationError, match=r"found a object as 'credential'.*storage_options"):
        open_storage("memory://ck", connect())


@pytest.mark.parametrize("token", [None, "session-token"])
def test_a_session_of_aws_becomes_its_credentials(connect, provided, masked: list[object], token: str | None) -> None:
    from aiobotocore.session import AioSession
    from s3fs import S3FileSystem

    def make(conn_id: str, options: dict[str, str]) -> S3FileSystem:
        session = AioSession()
        session.set_credentials("AKIAEXAMPLE", SECRET, token)
        session.set_config_variable("region", "eu-west-1")
        return S3FileSystem(session=session, config_kwargs={}, endpoint_url=None, anon=False)

    provided("s3", make)
    options = dict(open_storage("s3://bucket/ck", connect()).options)
    assert options.pop("token", None) == token
    assert options == {
        "key": "AKIAEXAMPLE",
        "secret": SECRET,
        "client_kwargs": {"region_name": "eu-west-1"},
        "config_kwargs": {},
        "anon": False,
    }
    assert {"AKIAEXAMPLE", SECRET} | ({token} if token else set()) <= {each for each in masked if isinstance(each, str)}
    json.dumps(options)


def test_a_session_of_aws_without_credentials_gives_none(connect, provided, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3fs import S3FileSystem

    class NoSession:
        async def get_credentials(self) -> None:
            return None

        def get_config_variable(self, name: str) -> None:
            return None

    provided("s3", lambda conn_id, options: S3FileSystem(session=NoSession(), anon=True))
    assert dict(open_storage("s3://bucket/ck", connect()).options) == {"anon": True}


def test_a_scheme_that_the_provider_of_azure_does_not_know_is_asked_for_as_one_it_knows(connect, provided) -> None:
    def make(conn_id: str, options: dict[str, str]) -> Any:
        raise InvalidConfigurationError(f"asked with {conn_id}")

    provided("abfs", make)
    with pytest.raises(InvalidConfigurationError, match="asked with bucket"):
        open_storage("az://container/ck", connect())
