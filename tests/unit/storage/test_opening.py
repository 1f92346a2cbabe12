"""Filesystems of URIs and their options."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import conceal, open_filesystem, redact, secrets_in


class HostedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem whose URIs name a host, as those of HDFS and Azure do."""

    protocol = "hosted"
    cachable = False

    def __init__(self, host: str = "", refuse: type[Exception] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.host = host
        self.listings_are_cached = options.get("use_listings_cache")
        if refuse is not None:
            raise refuse("hosted://user:secret@h refused")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"host": path.partition("://")[2].partition("/")[0]}


@pytest.fixture(autouse=True)
def hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "hosted", HostedFileSystem)


def test_missing_package_without_an_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry, "sftp", raising=False)
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    with pytest.raises(InvalidConfigurationError, match="paramiko"):
        CheckpointStorage.open("sftp://host/ck")


def test_missing_library_of_hadoop_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutLibrary(HostedFileSystem):
        def __init__(self, **_: Any) -> None:
            raise OSError("Unable to load libjvm\ndlopen(/a/libjvm.so) failed\ndlopen(/b/libjvm.so) failed")

    monkeypatch.setitem(_registry, "hdfs", WithoutLibrary)
    with pytest.raises(InvalidConfigurationError, match="libhdfs and Java") as caught:
        CheckpointStorage.open("hdfs://namenode/ck")
    assert "\n" not in str(caught.value)


def test_unknown_scheme_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="found 'nosuch'"):
        CheckpointStorage.open("nosuch://bucket/ck")


@pytest.mark.parametrize(
    ("refuse", "expected"),
    [
        (ValueError, InvalidConfigurationError),
        (TypeError, InvalidConfigurationError),
        (ImportError, InvalidConfigurationError),
        (OSError, StorageError),
        (RuntimeError, StorageError),
    ],
)
def test_filesystem_that_cannot_be_made_is_our_error(refuse: type[Exception], expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught:
        CheckpointStorage.open("hosted://h/ck", refuse=refuse)
    assert caught.value.__cause__ is None or refuse is ImportError
    assert "secret" not in str(caught.value) or refuse is ImportError


def test_host_in_the_uri_reaches_the_filesystem_unless_options_say_otherwise() -> None:
    assert open_filesystem("hosted://h/ck", {}).host == "h"
    assert open_filesystem("hosted://h/ck", {"host": "other"}).host == "other"


def test_listings_are_never_cached() -> None:
    assert open_filesystem("hosted://h/ck", {"use_listings_cache": True}).listings_are_cached is False


def test_another_host_is_another_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = HostedFileSystem.__init__

    def recording(self: HostedFileSystem, host: str = "", **options: Any) -> None:
        opened.append(host)
        original(self, host, **options)

    monkeypatch.setattr(HostedFileSystem, "__init__", recording)
    storage = CheckpointStorage.open("hosted://one/ck")
    storage.exists("hosted://one/elsewhere")
    assert opened == ["one"]
    storage.allowing("hosted://two/ck").exists("hosted://two/ck")
    assert opened == ["one", "two"]


SECRET = "wJalr/secret+key"


def test_options_are_kept_for_another_process_and_shown_to_nobody() -> None:
    storage = CheckpointStorage.open("memory://user:pass@host/ck", token=SECRET)
    assert storage.options == {"token": SECRET}
    assert repr(storage) == str(storage) == "CheckpointStorage('memory://***@host/ck')"


def test_options_cannot_be_changed_from_outside() -> None:
    given = {"token": SECRET}
    storage = CheckpointStorage.open("memory://ck", **given)
    given["token"] = "other"
    assert storage.options["token"] == SECRET
    with pytest.raises(TypeError):
        storage.options["token"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    "options",
    [
        {"secret": SECRET},
        {"client_kwargs": {"aws_session_token": SECRET}},
        {"token": {"private": SECRET}},
        {"connection_string": SECRET},
        {"adls.connection-string": SECRET},
        {"sas_token": [SECRET]},
        {"passphrase": SECRET},
    ],
)
def test_secrets_at_any_depth_stay_out_of_messages(options: dict[str, object]) -> None:
    assert conceal(f"denied for {SECRET} at s3://a:b@host/x", options) == "denied for *** at s3://***@host/x"


def test_what_is_no_secret_stays_in_messages() -> None:
    options = {"endpoint_url": "http://host:9000", "anon": False, "key": ""}
    assert conceal("http://host:9000 is not there", options) == "http://host:9000 is not there"


def test_way_to_find_a_credential_is_none() -> None:
    assert list(secrets_in({"token": "cloud", "headers": {"Authorization": "Bearer abc"}})) == ["Bearer abc"]


def test_signatures_in_urls_are_redacted() -> None:
    assert redact("GET https://a/b?sv=1&sig=abc%2F&x=2 failed") == "GET https://a/b?sv=1&sig=***&x=2 failed"
    assert redact("https://a/b?X-Amz-Signature=abc") == "https://a/b?X-Amz-Signature=***"


def test_an_option_that_is_refused_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self: MemoryFileSystem, **options: object) -> None:
        raise ValueError(f"cannot use {options}")

    monkeypatch.setattr(MemoryFileSystem, "__init__", refuse)
    with pytest.raises(InvalidConfigurationError) as caught:
        CheckpointStorage.open("memory://ck", token=SECRET, skip_instance_cache=True)
    assert SECRET not in str(caught.value)
