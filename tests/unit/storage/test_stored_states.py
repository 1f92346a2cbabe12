from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StorageError
from airflow_provider_statecheck.storage.completed_checkpoints import StoredStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

REF = AttemptRef(job_id=job_id_of("sales"), operator_id=operator_id_of("aggregate"), epoch=3)


@pytest.fixture
def states(tmp_path: Path) -> StoredStates:
    return StoredStates(CheckpointStorage.open(str(tmp_path)), REF)


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_state_comes_back_and_each_store_makes_a_file_of_its_own(states: StoredStates, tmp_path: Path):
    first, second = states.store(b"same"), states.store(b"same")
    assert states.retrieve(first) == b"same"
    assert first.uri != second.uri
    assert {path.parent.relative_to(tmp_path).as_posix() for path in _files(tmp_path)} == {
        f"{REF.job_id}/handles/{REF.operator_id}"
    }


def test_discard_deletes_this_file_alone_and_may_be_repeated(states: StoredStates, tmp_path: Path):
    first, second = states.store(b"1"), states.store(b"2")
    states.discard(first)
    states.discard(first)
    with pytest.raises(CheckpointNotFoundError):
        states.retrieve(first)
    assert states.retrieve(second) == b"2"


def test_changed_bytes_are_not_returned(states: StoredStates, tmp_path: Path):
    pointer = states.store(b"1")
    _files(tmp_path)[0].write_bytes(b"2")
    with pytest.raises(CorruptStateError):
        states.retrieve(pointer)


def test_a_write_that_failed_after_its_effect_leaves_no_file(
    states: StoredStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write = CheckpointStorage.write_bytes

    def loses_reply(storage: CheckpointStorage, uri: str, data: bytes) -> None:
        write(storage, uri, data)
        raise StorageError("lost")

    monkeypatch.setattr(CheckpointStorage, "write_bytes", loses_reply)
    with pytest.raises(StorageError, match="lost"):
        states.store(b"1")
    assert _files(tmp_path) == []
