"""Files of a function's own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor
from airflow_provider_statecheck.state.functions.task_owned import TaskOwnedState
from airflow_provider_statecheck.state.functions.user_functions import CheckpointedFunction, FlatMapFunction
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories
from airflow_provider_statecheck.testing.function_harness import FunctionHarness
from tests.unit.storage.views.places import ATTEMPT, files, job_of, make_access


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    """Return a storage without copies on its server, and one with them."""
    is_local = request.param == "local"
    return CheckpointStorage.open(tmp_path.as_uri() if is_local else f"memory://{uuid.uuid4().hex}")


def owned(storage: CheckpointStorage, inline_threshold: int = 0) -> TaskOwnedState:
    view = make_access(storage, inline_threshold=inline_threshold)
    return TaskOwnedState(view, storage, OperatorDirectories(storage, ATTEMPT).taskowned)


def test_file_is_written_read_and_deleted_by_its_reference(storage: CheckpointStorage) -> None:
    own = owned(storage)
    reference = own.write(b"a log")
    [file] = files(storage)
    assert file.startswith(f"{job_of(storage)}/taskowned/{ATTEMPT.operator_id}/{ATTEMPT.epoch}-")
    assert own.read(reference) == b"a log"
    for _ in range(2):
        own.delete(reference)
    assert files(storage) == set()
    with pytest.raises(CheckpointNotFoundError):
        own.read(reference)


def test_small_data_is_in_its_reference(storage: CheckpointStorage) -> None:
    own = owned(storage, inline_threshold=10)
    reference = own.write(b"small")
    assert files(storage) == set()
    own.delete(reference)
    assert own.read(reference) == b"small"


@pytest.mark.parametrize("threshold", [0, 10])
def test_copies_are_files_of_their_own_in_the_same_order(storage: CheckpointStorage, threshold: int) -> None:
    own = owned(storage, threshold)
    originals = [own.write(b"one"), own.write(b"another one")]
    copies = own.duplicate(originals)
    for reference in originals:
        own.delete(reference)
    assert [own.read(reference) for reference in copies] == [b"one", b"another one"]
    assert own.duplicate([]) == []


def test_file_of_another_operator_remains(storage: CheckpointStorage) -> None:
    other = AttemptRef(job_id=ATTEMPT.job_id, operator_id=operator_id_of("other"), epoch=1)
    reference = owned(storage).write(b"a log")
    heir = TaskOwnedState(make_access(storage), storage, OperatorDirectories(storage, other).taskowned)
    heir.delete(reference)
    assert heir.read(reference) == b"a log"


def test_no_data_and_changed_references_are_refused(storage: CheckpointStorage) -> None:
    own = owned(storage)
    with pytest.raises(InvalidConfigurationError, match="write no empty file"):
        own.write(b"")
    for reference in ("", "{}", '{"handle":{"kind":"other"}}'):
        with pytest.raises(CorruptStateError, match="the reference of a function's file"):
            own.read(reference)


class WriteAhead(FlatMapFunction[Any, Any], CheckpointedFunction):
    """Writes each value to a log of its own, and emits what the logs of the last checkpoint have."""

    def initialize_state(self, context: Any) -> None:
        self.own = context.get_task_owned_state()
        self.logs = context.get_operator_state_store().get_list_state(ListStateDescriptor("logs", str))

    def snapshot_state(self, context: Any) -> None:
        """Has its references in state."""

    def flat_map(self, value: bytes) -> Any:
        yield from (self.own.read(reference) for reference in self.logs.get())
        self.logs.add(self.own.write(value))


def test_function_finds_its_files_after_a_restore() -> None:
    with FunctionHarness(WriteAhead(), snapshot_between_calls=True) as harness:
        assert harness.process(b"first") == []
        assert harness.process(b"second") == [b"first"]
        assert harness.process(b"third") == [b"first", b"second"]
