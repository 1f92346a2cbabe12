"""The sink on an object store, and on a filesystem that renames."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.object_store import Fault
from tests.unit.spark.sinks.attempts import Attempt, committed_in, seen_in


@pytest.fixture
def bucket(object_store):
    yield f"s3://{object_store.make_bucket()}/table"
    object_store.faults.clear()


def test_an_object_store_holds_what_was_committed(object_store, bucket):
    options = object_store.storage_options
    first = Attempt(bucket, 1, storage_options=options).open()
    first.add(1, 1)
    late = first.write(2)
    second = Attempt(bucket, 2, restored=2, storage_options=options).open()
    second.commit(2, late)
    third = Attempt(bucket, 3, restored=1, storage_options=options).open()
    third.add(3, 3)
    third.finish()
    assert (seen_in(bucket, options), committed_in(bucket, options)) == ([1, 3], [1, 3])


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.REPLY_LOST, Fault.DROPPED])
@pytest.mark.parametrize(
    ("method", "key"), [("PUT", r"\.staged"), ("PUT", r"part-"), ("DELETE|POST", ""), ("PUT", "commits/")]
)
def test_what_fails_for_a_moment_on_an_object_store_is_done_again(object_store, bucket, fault, method, key):
    options = object_store.storage_options
    attempt = Attempt(bucket, 1, storage_options=options).open()
    object_store.faults.inject(fault, method=method, key=key)
    attempt.add(1, 1)
    attempt.finish()
    assert (seen_in(bucket, options), committed_in(bucket, options)) == ([1], [1])


def test_a_bucket_without_rights_is_told_before_any_work(object_store, bucket):
    object_store.faults.inject(Fault.DENIED, method="PUT", times=10)
    with pytest.raises(StorageError, match="Check the credentials"):
        Attempt(bucket, 1, storage_options=object_store.storage_options).open()


class RenamingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Stands for HDFS: files are renamed by the server, into directories that are there."""

    protocol = "hdfs"

    def cp_file(self, *_: object, **__: object) -> None:
        raise AssertionError("a filesystem that renames copies nothing")

    def mv(self, path1: str, path2: str, **_: object) -> None:
        Path(path1).rename(path2)


@pytest.fixture
def renaming(tmp_path):
    storage = CheckpointStorage(RenamingFileSystem(use_listings_cache=False), f"hdfs://{tmp_path}/table")
    return TargetFiles(storage, "0" * 12)


def test_a_file_is_renamed_where_the_server_can(renaming, tmp_path):
    name = f"_statecheck/{'0' * 12}/staging/1-x.staged"
    renaming.storage.write_bytes(f"{renaming.storage.base_uri}/{name}", b"content")
    final = f"day=1/part-{'0' * 12}-g1-c1-0-{'a' * 12}.parquet"
    renaming.move(name, final)
    assert renaming.list_files() == {final: 7}
