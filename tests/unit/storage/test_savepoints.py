"""What is written into a savepoint's directory."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, decode_metadata
from airflow_provider_statecheck.storage.pointers import StateCopies, WrittenSavepoint, write_copies

JOB, OPERATOR = "0" * 32, OperatorId("1" * 32)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"{tmp_path}/base")


def file(storage: CheckpointStorage, name: str, data: bytes) -> FileStateHandle:
    uri = f"{storage.base_uri}/{JOB}/shared/{name}"
    storage.write_bytes(uri, data)
    return FileStateHandle(uri=uri, size=len(data))


def document(*streams: StreamStateHandle) -> CheckpointDocument:
    one, two, three, four = streams
    groups = KeyGroupRange(0, 1)
    incremental = KeyedStateHandle(
        backend_id="b", key_group_range=groups, checkpoint_id=1, shared=(("a", one),), private=(("b", two),), meta=three
    )
    subtask = OperatorSubtaskState(
        managed_keyed=(incremental,),
        raw_operator=(OperatorStateHandle((), four),),
    )
    state = OperatorState(
        operator_id=OPERATOR,
        uid="totals",
        parallelism=1,
        max_parallelism=2,
        subtask_states={0: subtask},
        coordinator_state=two,
    )
    return CheckpointDocument(
        job_id=JOB,
        job_name="sales",
        operator_id=OPERATOR,
        uid="totals",
        checkpoint_id=7,
        epoch=3,
        generation=1,
        snapshots=(),
        state=InlineStateHandle(value={"done": [1]}),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        operator_states=(state,),
    )


@pytest.fixture
def source(storage: CheckpointStorage) -> CheckpointDocument:
    whole = file(storage, "whole", b"a segment and its neighbours")
    segment = SegmentFileStateHandle(whole.uri, 2, 7, CheckpointedStateScope.SHARED, "logical")
    return document(
        file(storage, "one", b"first"), file(storage, "two", b"second"), segment, ByteStreamStateHandle("n", b"inline")
    )


def save(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path, checkpoint_id: int = 8
) -> WrittenSavepoint:
    copies = StateCopies(storage, f"file://{tmp_path}/savepoint-000000-000000000000", source.epoch)
    return write_copies(
        copies,
        source,
        checkpoint_id=checkpoint_id,
        properties=CheckpointProperties.for_savepoint(),
    )


def content(storage: CheckpointStorage, stream: StreamStateHandle) -> bytes:
    if isinstance(stream, ByteStreamStateHandle):
        return stream.data
    assert isinstance(stream, FileStateHandle)
    return storage.allowing(stream.uri).read_bytes(stream.uri)


def test_a_savepoint_holds_a_copy_of_every_stream_of_every_operator(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path
) -> None:
    written = save(storage, source, tmp_path)
    storage.delete_directory(f"{storage.base_uri}/{JOB}/chk-7")
    copied = decode_metadata(
        storage.allowing(written.metadata.uri).read_bytes(written.metadata.uri), uri=written.metadata.uri
    )
    [state] = copied.operator_states
    found = [content(storage, stream) for stream in streams_of(state)]
    assert found == [b"second", b"inline", b"first", b"second", b"segment"]
    assert copied.relocatable
    assert copied.properties.is_savepoint
    assert copied.checkpoint_id == 8


def test_a_file_that_is_named_twice_is_copied_once(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path
) -> None:
    written = save(storage, source, tmp_path)
    files = CheckpointStorage.open(f"file://{tmp_path}/savepoint-000000-000000000000").list_files(
        f"file://{tmp_path}/savepoint-000000-000000000000"
    )
    assert len(files) == len({"one", "two", "segment", "_metadata"})
    assert written.state_size_bytes == len(b"first") + len(b"second") + len(b"segment")


def test_a_missing_file_leaves_a_directory_without_metadata(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path
) -> None:
    (tmp_path / "base" / JOB / "shared" / "one").unlink()
    with pytest.raises(CheckpointNotFoundError, match="one"):
        save(storage, source, tmp_path)
    assert not (tmp_path / "savepoint-000000-000000000000" / "_metadata").exists()


def test_two_savepoints_never_share_a_directory(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path
) -> None:
    save(storage, source, tmp_path)
    with pytest.raises(StorageError, match="two writers"):
        save(storage, source, tmp_path, checkpoint_id=9)


def test_a_savepoint_that_is_written_again_is_the_same(
    storage: CheckpointStorage, source: CheckpointDocument, tmp_path: Path
) -> None:
    written = save(storage, source, tmp_path)
    directory = f"file://{tmp_path}/savepoint-000000-000000000000"
    files = storage.allowing(directory).list_files(directory)
    assert save(storage, source, tmp_path) == written
    assert storage.allowing(directory).list_files(directory) == files
