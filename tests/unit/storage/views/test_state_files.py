"""State files of handles: reads, deletion and copies on the servers."""

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
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import CheckpointStateToolset, discard_state, read_state
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.unit.storage.views.places import EXCLUSIVE, files, make_access, save

DATA = b"0123456789"


@pytest.fixture
def uri(storage: CheckpointStorage, job: str) -> str:
    uri = f"{job}/chk-1/1-{'a' * 32}"
    storage.write_bytes(uri, b"<<" + DATA + b">>")
    return uri


@pytest.fixture(params=["inline", "file", "segment"])
def handle(request: pytest.FixtureRequest, storage: CheckpointStorage, uri: str) -> StreamStateHandle:
    if request.param == "inline":
        return ByteStreamStateHandle("x", DATA)
    if request.param == "segment":
        return SegmentFileStateHandle(uri, 2, len(DATA), EXCLUSIVE, "id")
    storage.write_bytes(uri, DATA, overwrite=True)
    return FileStateHandle(uri, len(DATA))


def test_every_kind_is_read_whole(storage: CheckpointStorage, handle: StreamStateHandle) -> None:
    assert read_state(storage, handle) == DATA


def test_other_bytes_are_found_by_their_checksum(storage: CheckpointStorage, uri: str) -> None:
    for handle in (
        FileStateHandle(uri, 14, "0" * 64),
        SegmentFileStateHandle(uri, 2, 10, EXCLUSIVE, "id", "0" * 64),
    ):
        with pytest.raises(CorruptStateError, match="sha256"):
            read_state(storage, handle)


@pytest.mark.parametrize("size", [13, 15])
def test_a_file_of_another_length_is_corrupt(storage: CheckpointStorage, uri: str, size: int) -> None:
    with pytest.raises(CorruptStateError, match="14"):
        read_state(storage, FileStateHandle(uri, size))


def test_a_file_that_is_too_short_is_corrupt(storage: CheckpointStorage, uri: str) -> None:
    segment = SegmentFileStateHandle(uri, 10, 10, EXCLUSIVE, "id")
    with pytest.raises(CorruptStateError):
        read_state(storage, segment)


def test_a_missing_file_is_not_found(storage: CheckpointStorage, job: str) -> None:
    handle = FileStateHandle(f"{job}/chk-1/none", 3)
    with pytest.raises(CheckpointNotFoundError):
        read_state(storage, handle)


def test_discarding_deletes_the_file_only_and_may_be_repeated(storage: CheckpointStorage, uri: str, job: str) -> None:
    storage.write_bytes(f"{job}/chk-1/other", b"x")
    for _ in range(2):
        discard_state(storage, FileStateHandle(uri, 14))
    assert files(storage) == {f"{job}/chk-1/other"}


def test_discarding_what_has_no_file_of_its_own_does_nothing(storage: CheckpointStorage, uri: str) -> None:
    plan = FaultPlan()
    counted = faulty_storage(storage, plan)
    discard_state(counted, ByteStreamStateHandle("x", b"a"))
    discard_state(counted, SegmentFileStateHandle(uri, 2, 10, EXCLUSIVE, "id"))
    assert plan.calls == []


def test_a_failed_discard_is_told(storage: CheckpointStorage, uri: str) -> None:
    with pytest.raises(StorageError, match="Injected"):
        discard_state(faulty_storage(storage, FaultPlan(1)), FileStateHandle(uri, 14))


def test_handles_are_equal_by_place_or_by_name_and_bytes(uri: str) -> None:
    assert FileStateHandle(uri, 1) == FileStateHandle(uri, 1)
    assert ByteStreamStateHandle("x", b"a") == ByteStreamStateHandle("x", b"a") != ByteStreamStateHandle("x", b"b")


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
    assert CheckpointStateToolset(memory, directory, 1).can_fast_duplicate(FileStateHandle(uri, 1)) is is_fast
