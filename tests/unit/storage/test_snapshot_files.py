"""Where the coordinator of several operators writes: what is too much for the metadata lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotContent
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
    streams_of,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_files import SnapshotFiles
from tests.messages import ManualClock, complete_checkpoint, make_registration
from tests.sqlite_rows import new_store

JOB = JobId("0" * 32)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"{tmp_path}/base")


@pytest.fixture
def checkpoint(storage: CheckpointStorage) -> Any:
    coordinator = AttemptCoordinator(new_store(ManualClock()))
    attempt = coordinator.register(make_registration(storage_base=storage.base_uri)).attempt
    return complete_checkpoint(coordinator, attempt).checkpoint


def content(*sizes: int) -> SnapshotContent:
    handles = [ByteStreamStateHandle(f"h{i}", bytes([i]) * size) for i, size in enumerate(sizes)]
    subtasks = {
        i: OperatorSubtaskState(
            managed_keyed=(
                KeyedStateHandle(
                    backend_id="b", key_group_range=KeyGroupRange(i, i), checkpoint_id=1, private=(("x", handle),)
                ),
            )
        )
        for i, handle in enumerate(handles)
    }
    state = OperatorState(
        operator_id=OperatorId("1" * 32), uid="u", parallelism=len(sizes), max_parallelism=8, subtask_states=subtasks
    )
    return SnapshotContent(operator_states=(state,))


def kinds(found: SnapshotContent) -> list[type[Any]]:
    return [type(stream) for stream in streams_of(found.operator_states[0])]


def test_state_above_the_inline_budget_lies_in_files_beside_the_metadata(
    storage: CheckpointStorage, checkpoint: Any
) -> None:
    files = SnapshotFiles(storage, JOB, "sales", inline_budget=15)
    found = files.read(files.write_metadata(checkpoint, content(4, 20, 5)))
    assert kinds(found) == [ByteStreamStateHandle, FileStateHandle, ByteStreamStateHandle]
    [spilled] = [s for s in streams_of(found.operator_states[0]) if isinstance(s, FileStateHandle)]
    assert storage.read_bytes(spilled.uri) == bytes([1]) * 20
    assert spilled.uri.startswith(f"{checkpoint.location}/")


def test_state_within_the_inline_budget_travels_in_the_metadata(storage: CheckpointStorage, checkpoint: Any) -> None:
    files = SnapshotFiles(storage, JOB, "sales")
    assert files.read(files.write_metadata(checkpoint, content(4, 20))) == content(4, 20)
    assert set(storage.list_files(checkpoint.location)) == {"_metadata"}


def test_whoever_writes_it_again_writes_equal_bytes(storage: CheckpointStorage, checkpoint: Any) -> None:
    files = SnapshotFiles(storage, JOB, "sales", inline_budget=15)
    first = files.write_metadata(checkpoint, content(4, 20, 5))
    assert files.write_metadata(checkpoint, content(4, 20, 5)) == first
    assert len(storage.list_files(checkpoint.location)) == 2
