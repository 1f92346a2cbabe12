"""The life of a function: in which order it is called, what becomes of its errors, and what its contexts give."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import add
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import CoordinatorError, StorageError
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.functions.contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedContext,
    ManagedInitializationContext,
    RuntimeContext,
    StateInitializationContext,
    StateSnapshotContext,
    TaskInfo,
)
from airflow_provider_statecheck.state.functions.task_owned import in_memory
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    FunctionLifecycle,
    RichMapFunction,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import KeyedStateStore
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, read_restored
from airflow_provider_statecheck.state.operator.states import raw_operator_state_inputs
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import MemoryCheckpointStreamFactory
from tests.written_state import file_streams

TASK = TaskInfo(
    task_name="balance",
    index_of_this_subtask=1,
    number_of_parallel_subtasks=4,
    max_number_of_parallel_subtasks=128,
    logical_date=datetime(2026, 1, 2, tzinfo=UTC),
)
STREAMS = MemoryCheckpointStreamFactory(max_state_size=1000)
CHECKPOINT = CheckpointMetaData(5, datetime(2023, 11, 14, 22, 13, 20, 57_000, tzinfo=UTC))


SUM: Any = SimpleNamespace(create_accumulator=int, add=add, get_result=int, merge=add)
STATES: dict[str, StateDescriptor[Any]] = {
    "get_state": ValueStateDescriptor("state", int),
    "get_list_state": ListStateDescriptor("state", int),
    "get_reducing_state": ReducingStateDescriptor("state", max, int),
    "get_aggregating_state": AggregatingStateDescriptor("state", SUM, int),
    "get_folding_state": FoldingStateDescriptor("state", 0, add, int),
    "get_map_state": MapStateDescriptor("state", str, int),
}

OWN = in_memory(CheckpointStorage.open("memory://lifecycle"))


def keyed_store() -> KeyedStateStore:
    """Return a store whose states are their descriptors."""
    return KeyedStateStore(cast(Any, lambda descriptor: descriptor))


def initialization(**values: Any) -> StateInitializationContext:
    defaults: dict[str, Any] = {
        "is_restored": False,
        "operator_state_store": DefaultOperatorStateBackend(),
        "task_owned_state": OWN,
    }
    return StateInitializationContext(**defaults | values)


class TestInitialization:
    def test_it_gives_the_stores_and_what_was_restored(self) -> None:
        operator, keyed = DefaultOperatorStateBackend(), keyed_store()
        context = initialization(
            is_restored=True, operator_state_store=operator, keyed_state_store=keyed, restored_checkpoint_id=7
        )
        assert context.is_restored() is True
        assert context.get_restored_checkpoint_id() == 7
        assert context.get_operator_state_store() is operator
        assert context.get_keyed_state_store() is keyed

    def test_without_a_restore_there_is_no_checkpoint_id(self) -> None:
        assert initialization().get_restored_checkpoint_id() is None

    def test_keyed_state_of_an_operator_without_keys_is_refused(self) -> None:
        with pytest.raises(CoordinatorError, match="put key_by before it"):
            initialization().get_keyed_state_store()

    def test_its_managed_part_speaks_of_the_same_state(self) -> None:
        context = initialization(is_restored=True)
        managed = context.get_managed_initialization_context()
        assert isinstance(context, FunctionInitializationContext)
        assert isinstance(managed, ManagedInitializationContext)
        assert managed.is_restored() is True
        assert managed.get_operator_state_store() is context.get_operator_state_store()


class TestSnapshot:
    def test_it_tells_id_and_time(self) -> None:
        context = FunctionSnapshotContext(CHECKPOINT)
        assert context.get_checkpoint_id() == 5
        assert context.get_checkpoint_timestamp() == 1_700_000_000_057

    def test_it_gives_the_streams_of_the_checkpoint(self) -> None:
        assert StateSnapshotContext(CHECKPOINT, STREAMS).get_checkpoint_stream_factory() is STREAMS

    def test_a_checkpoint_without_streams_says_so(self) -> None:
        with pytest.raises(CoordinatorError, match="takes no raw state"):
            StateSnapshotContext(CHECKPOINT).get_checkpoint_stream_factory()

    def test_there_is_one_raw_output(self) -> None:
        context = StateSnapshotContext(CHECKPOINT, STREAMS)
        assert context.get_raw_operator_state_output() is context.get_raw_operator_state_output()

    def test_raw_output_is_of_no_use_after_the_call(self) -> None:
        context = StateSnapshotContext(CHECKPOINT, STREAMS)
        output = context.get_raw_operator_state_output()
        context.end()
        with pytest.raises(CoordinatorError, match="found it closed"):
            output.write(b"late")


@pytest.mark.parametrize(
    "method",
    [
        name
        for each in (StateInitializationContext, StateSnapshotContext)
        for name in dir(each)
        if name[:3] in ("is_", "get")
    ],
)
def test_a_context_is_of_no_use_after_the_call(method: str) -> None:
    of_snapshot = hasattr(StateSnapshotContext, method)
    context: Any = (
        StateSnapshotContext(CHECKPOINT, STREAMS) if of_snapshot else initialization(keyed_state_store=keyed_store())
    )
    getattr(context, method)()
    context.end()
    call = "snapshot_state" if of_snapshot else "initialize_state"
    with pytest.raises(CoordinatorError, match=f"during {call}"):
        getattr(context, method)()


class TestRuntime:
    def test_it_tells_where_the_function_runs(self) -> None:
        context = RuntimeContext(TASK, None, OWN)
        assert context.task_info.index_of_this_subtask == 1
        assert context.logical_date == datetime(2026, 1, 2, tzinfo=UTC)

    def test_it_gives_files_of_the_functions_own_until_close(self) -> None:
        context = RuntimeContext(TASK, None, OWN)
        assert context.get_task_owned_state() is OWN
        context.end()
        with pytest.raises(CoordinatorError, match="from open to close"):
            context.get_task_owned_state()

    @pytest.mark.parametrize("method", STATES)
    def test_it_gives_keyed_state_of_each_kind(self, method: str) -> None:
        assert getattr(RuntimeContext(TASK, keyed_store(), OWN), method)(STATES[method]) is STATES[method]

    @pytest.mark.parametrize("method", STATES)
    def test_keyed_state_of_an_operator_without_keys_is_refused(self, method: str) -> None:
        with pytest.raises(CoordinatorError, match="put key_by before it"):
            getattr(RuntimeContext(TASK, None, OWN), method)(STATES[method])

    @pytest.mark.parametrize("method", STATES)
    def test_it_gives_no_state_after_close(self, method: str) -> None:
        context = RuntimeContext(TASK, keyed_store(), OWN)
        context.end()
        with pytest.raises(CoordinatorError, match="from open to close"):
            getattr(context, method)(STATES[method])


class TestKeyed:
    def test_it_tells_the_key_and_the_time_of_the_element(self) -> None:
        context: KeyedContext[str] = KeyedContext()
        context.begin("ann", 12)
        assert context.current_key == "ann"
        assert context.timestamp() == 12
        context.begin("bob")
        assert context.current_key == "bob"
        assert context.timestamp() is None

    @pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
    def test_it_is_of_no_use_outside_of_an_element(self, is_after: bool) -> None:
        context: KeyedContext[str] = KeyedContext()
        if is_after:
            context.begin("ann", 12)
            context.end()
        with pytest.raises(CoordinatorError, match="current key"):
            _ = context.current_key
        with pytest.raises(CoordinatorError, match="timestamp"):
            context.timestamp()

    def test_a_batch_has_no_current_key(self) -> None:
        context: KeyedContext[str] = KeyedContext()
        context.begin("ann", 12)
        context.begin_batch()
        assert context.timestamp() is None
        with pytest.raises(CoordinatorError, match="from the columns of the table"):
            _ = context.current_key


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
    lifecycle.initialize(initialization(**values))
    return lifecycle


@pytest.mark.parametrize("is_restored", [True, False])
def test_state_is_initialized_before_the_function_is_opened(is_restored: bool) -> None:
    function = Recorder()
    lifecycle = started(function, is_restored=is_restored)
    lifecycle.snapshot(CHECKPOINT)
    lifecycle.close()
    assert function.calls == [f"initialize_state({is_restored})", "open", "snapshot_state(5, 1700000000057)", "close"]


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
        lifecycle.initialize(initialization())
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
        lambda: lifecycle.initialize(initialization(is_restored=True)),
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
    lifecycle = started(function, keyed_state_store=keyed_store())
    context = function.contexts["open"]
    try:
        lifecycle.close()
    except ValueError:
        assert failing
    with pytest.raises(CoordinatorError, match="from open to close"):
        context.get_state(STATES["get_state"])


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


def test_what_snapshot_state_puts_into_state_is_in_the_snapshot(tmp_path: Path) -> None:
    function, backend = Buffering(), DefaultOperatorStateBackend()
    lifecycle = started(function, operator_state_store=backend)
    function.held = [1, 2]
    lifecycle.snapshot(CHECKPOINT, STREAMS)
    handle = backend.snapshot(5, 99, STREAMS).run().handle
    assert handle is not None
    again = Buffering()
    restored = DefaultOperatorStateBackend(read_restored(CheckpointStorage.open(str(tmp_path)), [handle]))
    started(again, operator_state_store=restored)
    assert again.held == [1, 2]


def test_raw_state_comes_back_to_the_function(tmp_path: Path) -> None:
    handles = started(RawWriter()).snapshot(CHECKPOINT, STREAMS)
    function = RawWriter()
    storage = CheckpointStorage.open(str(tmp_path))
    started(function, raw_operator_state=raw_operator_state_inputs(storage, handles))
    assert function.found == [b"raw"]


def test_raw_state_of_a_failed_snapshot_leaves_no_file(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(str(tmp_path / "base"))
    streams = file_streams(storage)
    with pytest.raises(CheckpointException, match="of the user"):
        started(RawWriter(ValueError("of the user"))).snapshot(CHECKPOINT, streams)
    assert list(storage.list_files(storage.base_uri)) == []
    assert started(RawWriter()).snapshot(CHECKPOINT, streams)
    assert len(list(storage.list_files(storage.base_uri))) == 1
