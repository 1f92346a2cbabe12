"""Contexts: what they give during their call, and nothing after it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.exceptions import CoordinatorError
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
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.storage.views.memory_storage import MemoryCheckpointStreamFactory

TASK = TaskInfo(
    task_name="balance",
    index_of_this_subtask=1,
    number_of_parallel_subtasks=4,
    max_number_of_parallel_subtasks=128,
    logical_date=datetime(2026, 1, 2, tzinfo=UTC),
)
STREAMS = MemoryCheckpointStreamFactory(max_state_size=1000)
CHECKPOINT = CheckpointMetaData(5, datetime(2023, 11, 14, 22, 13, 20, 57_000, tzinfo=UTC))


class RecordingStore:
    """Stands for the store of a keyed backend: it says which of its methods was called, and with what."""

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        return lambda descriptor: (name, descriptor)


def initialization(**values: Any) -> StateInitializationContext:
    defaults: dict[str, Any] = {"is_restored": False, "operator_state_store": DefaultOperatorStateBackend()}
    return StateInitializationContext(**defaults | values)


class TestInitialization:
    def test_it_gives_the_stores_and_what_was_restored(self) -> None:
        operator, keyed = DefaultOperatorStateBackend(), RecordingStore()
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

    @pytest.mark.parametrize(
        "method",
        [
            "is_restored",
            "get_restored_checkpoint_id",
            "get_operator_state_store",
            "get_keyed_state_store",
            "get_managed_initialization_context",
            "get_raw_operator_state_inputs",
        ],
    )
    def test_it_is_of_no_use_after_the_call(self, method: str) -> None:
        context = initialization(keyed_state_store=RecordingStore())
        getattr(context, method)()
        context.end()
        with pytest.raises(CoordinatorError, match="during initialize_state"):
            getattr(context, method)()


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

    @pytest.mark.parametrize(
        "method",
        [
            "get_checkpoint_id",
            "get_checkpoint_timestamp",
            "get_checkpoint_stream_factory",
            "get_raw_operator_state_output",
        ],
    )
    def test_it_is_of_no_use_after_the_call(self, method: str) -> None:
        context = StateSnapshotContext(CHECKPOINT, STREAMS)
        getattr(context, method)()
        context.end()
        with pytest.raises(CoordinatorError, match="during snapshot_state"):
            getattr(context, method)()

    def test_raw_output_is_of_no_use_after_the_call(self) -> None:
        context = StateSnapshotContext(CHECKPOINT, STREAMS)
        output = context.get_raw_operator_state_output()
        context.end()
        with pytest.raises(CoordinatorError, match="found it closed"):
            output.write(b"late")


class TestRuntime:
    METHODS = (
        "get_state",
        "get_list_state",
        "get_reducing_state",
        "get_aggregating_state",
        "get_folding_state",
        "get_map_state",
    )

    def test_it_tells_where_the_function_runs(self) -> None:
        context = RuntimeContext(TASK)
        assert context.task_info.index_of_this_subtask == 1
        assert context.logical_date == datetime(2026, 1, 2, tzinfo=UTC)

    @pytest.mark.parametrize("method", METHODS)
    def test_it_gives_keyed_state_of_each_kind(self, method: str) -> None:
        descriptor = object()
        assert getattr(RuntimeContext(TASK, RecordingStore()), method)(descriptor) == (method, descriptor)

    @pytest.mark.parametrize("method", METHODS)
    def test_keyed_state_of_an_operator_without_keys_is_refused(self, method: str) -> None:
        with pytest.raises(CoordinatorError, match="put key_by before it"):
            getattr(RuntimeContext(TASK), method)(object())

    @pytest.mark.parametrize("method", METHODS)
    def test_it_gives_no_state_after_close(self, method: str) -> None:
        context = RuntimeContext(TASK, RecordingStore())
        context.end()
        with pytest.raises(CoordinatorError, match="from open to close"):
            getattr(context, method)(object())


class TestKeyed:
    def test_it_tells_the_key_and_the_time_of_the_element(self) -> None:
        context: KeyedContext[str] = KeyedContext()
        context.begin("ann", 12)
        assert context.current_key == "ann"
        assert context.timestamp() == 12
        context.begin("bob")
        assert context.current_key == "bob"
        assert context.timestamp() is None

    def test_it_is_of_no_use_before_an_element(self) -> None:
        with pytest.raises(CoordinatorError, match="current key"):
            _ = KeyedContext[str]().current_key
        with pytest.raises(CoordinatorError, match="timestamp"):
            KeyedContext[str]().timestamp()

    def test_it_is_of_no_use_after_the_element(self) -> None:
        context: KeyedContext[str] = KeyedContext()
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
