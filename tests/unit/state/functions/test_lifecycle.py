"""The life of a function: in which order it is called, and what becomes of its errors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError, StorageError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor
from airflow_provider_statecheck.state.functions.contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RuntimeContext,
    StateSnapshotContext,
)
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    FunctionLifecycle,
    RichMapFunction,
)
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.state.operator.states import raw_operator_state_inputs
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.memory_storage import MemoryCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.state.functions.test_contexts import TASK

STREAMS = MemoryCheckpointStreamFactory(max_state_size=1000)
CHECKPOINT = CheckpointMetaData(3, datetime(1970, 1, 1, microsecond=99_000, tzinfo=UTC))


class Recorder(RichMapFunction[int, int], CheckpointedFunction):
    """Notes its calls; one of them may fail."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.failing = failing
        self.contexts: dict[str, Any] = {}

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._note(f"initialize_state({context.is_restored()})", context)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._note("open", runtime_context)

    def map(self, value: int) -> int:
        return value

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._note(f"snapshot_state({context.get_checkpoint_id()}, {context.get_checkpoint_timestamp()})", context)

    def close(self) -> None:
        self._note("close", None)

    def _note(self, call: str, context: Any) -> None:
        self.calls.append(call)
        name = call.partition("(")[0]
        self.contexts[name] = context
        if name == self.failing:
            raise ValueError("of the user")


def started(function: object, **values: Any) -> FunctionLifecycle:
    lifecycle = FunctionLifecycle(function, TASK)
    defaults: dict[str, Any] = {"is_restored": False, "operator_state_store": DefaultOperatorStateBackend()}
    lifecycle.initialize(**defaults | values)
    return lifecycle


@pytest.mark.parametrize("is_restored", [True, False])
def test_state_is_initialized_before_the_function_is_opened(is_restored: bool) -> None:
    function = Recorder()
    lifecycle = started(function, is_restored=is_restored)
    lifecycle.snapshot(CHECKPOINT)
    lifecycle.close()
    assert function.calls == [f"initialize_state({is_restored})", "open", "snapshot_state(3, 99)", "close"]


def test_the_function_is_closed_once() -> None:
    function = Recorder()
    lifecycle = started(function)
    lifecycle.close()
    lifecycle.close()
    assert function.calls.count("close") == 1


def test_a_function_that_could_not_be_opened_is_closed() -> None:
    function = Recorder(failing="open")
    lifecycle = FunctionLifecycle(function, TASK)
    with pytest.raises(ValueError, match="of the user"):
        lifecycle.initialize(is_restored=False, operator_state_store=DefaultOperatorStateBackend())
    lifecycle.close()
    assert function.calls[-1] == "close"


def test_a_function_whose_state_cannot_be_initialized_is_not_opened() -> None:
    function = Recorder(failing="initialize_state")
    with pytest.raises(ValueError, match="of the user"):
        started(function)
    assert "open" not in function.calls


def test_an_error_in_snapshot_state_fails_the_task() -> None:
    lifecycle = started(Recorder(failing="snapshot_state"))
    with pytest.raises(CheckpointException, match="of the user") as caught:
        lifecycle.snapshot(CHECKPOINT)
    assert caught.value.reason is CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("failing", ["", "initialize_state", "snapshot_state"])
def test_contexts_end_with_their_call_even_if_it_fails(failing: str) -> None:
    function = Recorder(failing)
    lifecycle = FunctionLifecycle(function, TASK)
    for step in (
        lambda: lifecycle.initialize(is_restored=True, operator_state_store=DefaultOperatorStateBackend()),
        lambda: lifecycle.snapshot(CHECKPOINT),
    ):
        try:
            step()
        except (ValueError, CheckpointException):
            assert failing
    with pytest.raises(CoordinatorError):
        function.contexts["initialize_state"].is_restored()
    with pytest.raises(CoordinatorError):
        function.contexts["snapshot_state"].get_checkpoint_id()


@pytest.mark.parametrize("failing", ["", "close"])
def test_the_runtime_context_ends_after_close(failing: str) -> None:
    function = Recorder(failing)
    lifecycle = started(function, keyed_state_store=object())
    context = function.contexts["open"]
    try:
        lifecycle.close()
    except ValueError:
        assert failing
    with pytest.raises(CoordinatorError, match="from open to close"):
        context.get_state(object())


@pytest.mark.parametrize("function", [len, lambda value: value, object(), None])
def test_functions_without_a_life_are_left_alone(function: object) -> None:
    lifecycle = started(function)
    assert lifecycle.snapshot(CHECKPOINT) == ()
    lifecycle.close()


class RawWriter(CheckpointedFunction):
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.found: list[bytes] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        inputs = context.get_raw_operator_state_inputs()  # type: ignore[attr-defined]
        self.found = [provider.get_stream().read() for provider in inputs]

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        assert isinstance(context, StateSnapshotContext)
        output = context.get_raw_operator_state_output()
        output.write(b"raw")
        if self.error is not None:
            raise self.error


def test_raw_state_of_a_function_is_part_of_the_snapshot() -> None:
    (handle,) = started(RawWriter()).snapshot(CHECKPOINT, STREAMS)
    assert [len(meta.offsets) for _, meta in handle.states] == [1]


class FailingStreams:
    """Streams of a storage that is full."""

    def create_checkpoint_state_output_stream(self, scope: Any) -> Any:
        raise StorageError("no space left")

    def could_reuse_state_handle(self, handle: Any) -> bool:
        return True


def test_an_error_of_the_storage_in_raw_state_fails_the_task() -> None:
    with pytest.raises(CheckpointException, match="no space left") as caught:
        started(RawWriter()).snapshot(CHECKPOINT, FailingStreams())
    assert caught.value.reason is CheckpointFailureReason.TASK_CHECKPOINT_FAILURE


class Buffering(CheckpointedFunction):
    """Puts what it holds into its state when a checkpoint is taken, and not before."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor[int]("buffer", int))
        self.held = list(self.state)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.held)


def test_what_snapshot_state_puts_into_state_is_in_the_snapshot() -> None:
    function, backend = Buffering(), DefaultOperatorStateBackend()
    lifecycle = started(function, operator_state_store=backend)
    function.held = [1, 2]
    lifecycle.snapshot(CHECKPOINT, STREAMS)
    handle = backend.snapshot(3, 99, STREAMS).run().handle
    assert handle is not None
    assert isinstance(handle.stream, ByteStreamStateHandle)
    data = handle.stream.data
    again = Buffering()
    started(again, operator_state_store=DefaultOperatorStateBackend([(handle, lambda: data)]))
    assert again.held == [1, 2]


def test_raw_state_comes_back_to_the_function(tmp_path: Path) -> None:
    handles = started(RawWriter()).snapshot(CHECKPOINT, STREAMS)
    function = RawWriter()
    storage = CheckpointStorage.open(str(tmp_path))
    started(function, raw_operator_state=raw_operator_state_inputs(storage, handles))
    assert function.found == [b"raw"]


def test_raw_state_of_a_failed_snapshot_leaves_no_file(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(str(tmp_path / "base"))
    writing = StateWriting(epoch=1, inline_threshold=0)
    streams = FsCheckpointStreamFactory(
        storage=storage, exclusive=f"{storage.base_uri}/chk-3", shared=f"{storage.base_uri}/shared", writing=writing
    )
    with pytest.raises(CheckpointException, match="of the user"):
        started(RawWriter(ValueError("of the user"))).snapshot(CHECKPOINT, streams)
    assert list(storage.list_files(storage.base_uri)) == []
    assert started(RawWriter()).snapshot(CHECKPOINT, streams)
    assert len(list(storage.list_files(storage.base_uri))) == 1
