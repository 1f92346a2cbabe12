"""What is written into the directory of a savepoint, and beside the metadata of a checkpoint of several operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, decode_metadata
from airflow_provider_statecheck.storage.pointers import StateCopies, WrittenSavepoint, write_copies
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.messages import ManualClock, complete_checkpoint, make_registration
from tests.sqlite_rows import new_store
from tests.unit.storage.documents import make_document
from tests.unit.storage.keyed_files import keyed, write
from tests.unit.written_stage import local_path

JOB = JobId("0" * 32)


@pytest.fixture
def source(local: CheckpointStorage) -> CheckpointDocument:
    shared = f"{local.base_uri}/{JOB}/shared"
    one, two, whole = (
        write(local, f"{shared}/{name}", data)
        for name, data in (("one", b"first"), ("two", b"second"), ("whole", b"a segment and its neighbours"))
    )
    segment = SegmentFileStateHandle(whole.uri, 2, 7, CheckpointedStateScope.SHARED, "logical")
    state = keyed(one, segment, private=(two, ByteStreamStateHandle("n", b"inline")))
    return make_document(snapshots=(), operator_states=(replace(state, coordinator_state=two),))


def save(local: CheckpointStorage, source: CheckpointDocument, checkpoint_id: int = 8) -> WrittenSavepoint:
    copies = StateCopies(local, directory_of(local), source.epoch)
    properties = CheckpointProperties.for_savepoint()
    return write_copies(copies, source, checkpoint_id=checkpoint_id, properties=properties)


def directory_of(local: CheckpointStorage) -> str:
    return f"{local.base_uri}/savepoint-000000-000000000000"


def content(storage: CheckpointStorage, stream: StreamStateHandle) -> bytes:
    # Copies of segments are files.
    assert not isinstance(stream, SegmentFileStateHandle)
    return read_state(storage, stream)


def test_a_savepoint_holds_a_copy_of_every_stream_of_every_operator(
    local: CheckpointStorage, source: CheckpointDocument
) -> None:
    uri = save(local, source).metadata.uri
    copied = decode_metadata(local.read_bytes(uri), uri=uri)
    [state] = copied.operator_states
    found = [content(local, stream) for stream in streams_of(state)]
    assert found == [b"second", b"first", b"segment", b"second", b"inline"]
    assert (copied.relocatable, copied.properties.is_savepoint, copied.checkpoint_id) == (True, True, 8)


def test_a_file_that_is_named_twice_is_copied_once(local: CheckpointStorage, source: CheckpointDocument) -> None:
    written = save(local, source)
    assert len(local.list_files(directory_of(local))) == len({"one", "two", "segment", "_metadata"})
    assert written.state_size_bytes == len(b"first") + len(b"second") + len(b"segment")


def test_a_missing_file_leaves_a_directory_without_metadata(
    local: CheckpointStorage, source: CheckpointDocument
) -> None:
    local_path(f"{local.base_uri}/{JOB}/shared/one").unlink()
    with pytest.raises(CheckpointNotFoundError, match="one"):
        save(local, source)
    assert not local.exists(f"{directory_of(local)}/_metadata")


def test_two_savepoints_never_share_a_directory(local: CheckpointStorage, source: CheckpointDocument) -> None:
    save(local, source)
    with pytest.raises(StorageError, match="two writers"):
        save(local, source, checkpoint_id=9)


def test_a_savepoint_that_is_written_again_is_the_same(local: CheckpointStorage, source: CheckpointDocument) -> None:
    written = save(local, source)
    files = local.list_files(directory_of(local))
    assert save(local, source) == written
    assert local.list_files(directory_of(local)) == files


@pytest.fixture
def checkpoint(local: CheckpointStorage) -> Any:
    coordinator = AttemptCoordinator(new_store(ManualClock()))
    attempt = coordinator.register(make_registration(storage_base=local.base_uri)).attempt
    return complete_checkpoint(coordinator, attempt).checkpoint


def of_several_operators(*sizes: int) -> AlignedContent:
    handles = (ByteStreamStateHandle(f"h{i}", bytes([i]) * size) for i, size in enumerate(sizes))
    return AlignedContent(operator_states=(replace(keyed(*handles), coordinator_state=None),))


def test_state_above_the_inline_budget_lies_in_files_beside_the_metadata(
    local: CheckpointStorage, checkpoint: Any
) -> None:
    files = AlignedFiles(local, JOB, "sales", inline_budget=15)
    found = list(
        streams_of(files.read(files.write_metadata(checkpoint, of_several_operators(4, 20, 5))).operator_states[0])
    )
    assert [type(stream) for stream in found] == [ByteStreamStateHandle, FileStateHandle, ByteStreamStateHandle]
    [spilled] = [stream for stream in found if isinstance(stream, FileStateHandle)]
    assert local.read_bytes(spilled.uri) == bytes([1]) * 20
    assert spilled.uri.startswith(f"{checkpoint.location}/")


def test_state_within_the_inline_budget_travels_in_the_metadata(local: CheckpointStorage, checkpoint: Any) -> None:
    files = AlignedFiles(local, JOB, "sales")
    assert files.read(files.write_metadata(checkpoint, of_several_operators(4, 20))) == of_several_operators(4, 20)
    assert set(local.list_files(checkpoint.location)) == {"_metadata"}


def test_whoever_writes_it_again_writes_equal_bytes(local: CheckpointStorage, checkpoint: Any) -> None:
    files = AlignedFiles(local, JOB, "sales", inline_budget=15)
    first = files.write_metadata(checkpoint, of_several_operators(4, 20, 5))
    assert files.write_metadata(checkpoint, of_several_operators(4, 20, 5)) == first
    assert len(local.list_files(checkpoint.location)) == 2
