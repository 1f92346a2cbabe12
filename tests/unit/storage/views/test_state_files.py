"""Reading, seeking and deleting what handles lead to."""

from __future__ import annotations

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
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import discard_state, read_state
from airflow_provider_statecheck.testing.faults import FaultPlan, faulty_storage
from tests.unit.storage.views.places import EXCLUSIVE, files

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
