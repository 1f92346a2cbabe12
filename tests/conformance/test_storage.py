"""The storage's contract over local files, memory, a filesystem of streams, and S3."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.registry import _registry

from airflow_provider_statecheck.testing.storage_contract import StorageContract
from tests.object_store import ObjectStore

MIB = 2**20


def hide_package(package: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fsspec package of a store one that is not installed."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(_registry, scheme, raising=False)


class ArrowFiles(ArrowFSWrapper):  # type: ignore[misc]
    """Local files by way of pyarrow: streams and renaming, as HDFS has them."""

    protocol = "arrowfiles"

    def __init__(self, **options: Any) -> None:
        from pyarrow.fs import LocalFileSystem

        super().__init__(LocalFileSystem(), **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("arrowfiles://").rstrip("/")


class TestLocalFiles(StorageContract):
    large_bytes = MIB

    @pytest.fixture
    def base_uri(self, tmp_path: Path) -> str:
        return tmp_path.as_uri()


class TestMemory(StorageContract):
    large_bytes = MIB

    @pytest.fixture
    def base_uri(self) -> str:
        return f"memory://{uuid.uuid4().hex}"


class TestStreamsAndRenaming(StorageContract):
    large_bytes = MIB
    tells_other_bytes = False

    @pytest.fixture
    def base_uri(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setitem(_registry, "arrowfiles", ArrowFiles)
        return f"arrowfiles://{tmp_path}"


class TestS3(StorageContract):
    @pytest.fixture
    def base_uri(self, object_store: ObjectStore) -> str:
        return f"s3://{object_store.bucket}/checkpoints with space"

    @pytest.fixture
    def storage_options(self, object_store: ObjectStore) -> dict[str, Any]:
        return object_store.storage_options


class TestS3ThroughArrow(TestS3):
    """Where s3fs is not installed."""

    tells_other_bytes = False

    @pytest.fixture
    def base_uri(self, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
        hide_package("s3fs", "s3", monkeypatch)
        return f"s3://{object_store.bucket}/arrow with space"


@pytest.mark.soak
class TestS3A(TestS3):
    """Hadoop's name for the same objects."""

    large_bytes = MIB
    many_files = 20

    @pytest.fixture
    def base_uri(self, object_store: ObjectStore) -> str:
        return f"s3a://{object_store.bucket}/checkpoints"
