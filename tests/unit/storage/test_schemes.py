from __future__ import annotations

import sys
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import EXTRAS, open_filesystem


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


@pytest.mark.parametrize(
    ("scheme", "module"),
    [("s3", "s3fs"), ("s3a", "s3fs"), ("gs", "gcsfs"), ("gcs", "gcsfs"), ("abfs", "adlfs"), ("abfss", "adlfs")],
)
def test_missing_package_is_answered_with_the_extra_that_brings_it(
    scheme: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    expected = rf"pip install 'airflow-provider-statecheck\[{EXTRAS[scheme]}\]'"
    with pytest.raises(InvalidConfigurationError, match=expected) as caught:
        CheckpointStorage.open(f"{scheme}://key:secret@bucket/ck")
    assert "secret" not in str(caught.value)


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
