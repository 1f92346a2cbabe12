"""Copying state of a task on the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import FsCheckpointStateToolset, read_state
from tests.unit.storage.views.places import EXCLUSIVE, files, make_access, save


def _saved(storage: CheckpointStorage, data: bytes) -> FileStateHandle:
    handle = save(make_access(storage).create_task_owned_state_stream(), data)
    assert isinstance(handle, FileStateHandle)
    return handle


def test_copies_keep_order_and_size_and_are_files_of_their_own(memory: CheckpointStorage) -> None:
    toolset = make_access(memory).create_task_owned_checkpoint_state_toolset()
    originals = [_saved(memory, data) for data in (b"a", b"bcd", b"ef")]
    copies = toolset.duplicate(originals)
    assert [read_state(memory, copy) for copy in copies] == [b"a", b"bcd", b"ef"]
    assert [copy.state_size for copy in copies] == [1, 3, 2]
    assert len(files(memory)) == 6
    assert all(toolset.can_fast_duplicate(handle) for handle in originals)


@pytest.mark.parametrize(
    "handle",
    [
        ByteStreamStateHandle("x", b"a"),
        SegmentFileStateHandle("memory://x/y", 0, 1, EXCLUSIVE, "id"),
        FileStateHandle("file:///x/y", 1),
    ],
    ids=["inline", "segment", "elsewhere"],
)
def test_what_is_no_file_on_the_same_servers_is_refused_and_nothing_copied(
    memory: CheckpointStorage, handle: StreamStateHandle
) -> None:
    toolset = make_access(memory).create_task_owned_checkpoint_state_toolset()
    original = _saved(memory, b"a")
    assert not toolset.can_fast_duplicate(handle)
    with pytest.raises(InvalidConfigurationError, match="same servers"):
        toolset.duplicate([original, handle])
    assert files(memory) == {original.uri}


def test_local_files_are_not_duplicated(local: CheckpointStorage) -> None:
    toolset = make_access(local).create_task_owned_checkpoint_state_toolset()
    original = _saved(local, b"a")
    assert not toolset.can_fast_duplicate(original)
    with pytest.raises(InvalidConfigurationError, match="can_fast_duplicate"):
        toolset.duplicate([original])


class _FailsAtTheSecond:
    """A storage that copies once."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._copies = 0

    def copy_file(self, source: str, target: str) -> None:
        self._copies += 1
        self._storage.copy_file(source, target)
        if self._copies == 2:
            raise StorageError("the reply was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def test_a_failure_leaves_no_copy(memory: CheckpointStorage) -> None:
    originals: Sequence[FileStateHandle] = [_saved(memory, data) for data in (b"a", b"b", b"c")]
    storage: Any = _FailsAtTheSecond(memory)
    with pytest.raises(StorageError, match="reply"):
        make_access(storage).create_task_owned_checkpoint_state_toolset().duplicate(originals)
    assert files(memory) == {original.uri for original in originals}


@pytest.mark.parametrize(
    ("directory", "uri", "is_fast"),
    [
        ("s3://a/x", "s3a://b/y", True),
        ("gs://a/x", "gcs://b/y", True),
        ("gs://a/x", "s3://a/y", False),
        ("abfs://c@one/x", "abfss://c@one/y", True),
        ("abfs://c@one/x", "abfs://c@two/y", False),
        ("hdfs://a/x", "hdfs://a/y", False),
    ],
)
def test_servers_copy_among_themselves_only(memory: CheckpointStorage, directory: str, uri: str, is_fast: bool) -> None:
    assert FsCheckpointStateToolset(memory, directory, 1).can_fast_duplicate(FileStateHandle(uri, 1)) is is_fast
