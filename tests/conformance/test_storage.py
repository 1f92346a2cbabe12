"""The storage's contract over local files, memory, a filesystem of streams, S3 and Google's storage."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.registry import _registry

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.storage_contract import StorageContract
from tests.object_store import ObjectStore, running_server

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
    large_bytes = 24 * MIB  # in three parts

    @pytest.fixture
    def base_uri(self, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
        hide_package("s3fs", "s3", monkeypatch)
        return f"s3://{object_store.bucket}/arrow with space"


GOOGLE = """
import socket, sys
from gcp_storage_emulator.server import create_server
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
create_server("127.0.0.1", port, in_memory=True, default_bucket="lake").start()
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def google() -> Iterator[str]:
    """URL of a server with the interface of Google's storage, which has the bucket ``lake``."""
    with running_server(GOOGLE) as port:
        yield f"http://127.0.0.1:{port}"


class TestGoogleThroughArrow(StorageContract):
    """Where gcsfs is not installed."""

    tells_other_bytes = False
    large_bytes = MIB
    many_files = 20

    @pytest.fixture
    def base_uri(self, monkeypatch: pytest.MonkeyPatch) -> str:
        hide_package("gcsfs", "gs", monkeypatch)
        return "gs://lake/arrow with space"

    @pytest.fixture
    def storage_options(self, google: str) -> dict[str, Any]:
        return {"token": "anon", "endpoint_url": google}

    def test_a_missing_bucket_is_not_a_missing_file(self, storage: CheckpointStorage) -> None:
        uri = f"gs://no-such-bucket/ck/{'a' * 32}/chk-1"
        elsewhere = storage.allowing(uri)
        for call in (elsewhere.read_bytes, elsewhere.exists, elsewhere.list_files, elsewhere.list_directories):
            with pytest.raises(StorageError, match="bucket does not exist") as caught:
                call(uri)
            assert not isinstance(caught.value, CheckpointNotFoundError)


@pytest.mark.soak
class TestS3A(TestS3):
    """Hadoop's name for the same objects."""

    large_bytes = MIB
    many_files = 20

    @pytest.fixture
    def base_uri(self, object_store: ObjectStore) -> str:
        return f"s3a://{object_store.bucket}/checkpoints"
