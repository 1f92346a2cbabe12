"""What is saved of functions over increments, whether their subtasks ran or not, and what they are told of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import FunctionChain, TaskReport
from airflow_provider_statecheck.spark.stages.planning import PlannedNode
from airflow_provider_statecheck.spark.stages.preparation import probe_schemas
from airflow_provider_statecheck.spark.stages.stage import MapNode
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.state.backends import MemoryStateBackend
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.functions.task_owned import in_memory
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    FlatMapFunction,
    MapFunction,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.state.operator.snapshots import saved_subtask
from tests.written_state import file_streams

UID = "stage/buffering"
SCHEMA = pa.schema([("value", pa.int64())])
SUBTASKS = 2


class Buffering(FlatMapFunction[Any, Any], CheckpointedFunction):
    """Gives pairs, and looks into its state only where there is something to go on from, as Flink's examples do."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", int))
        self.restored_from = context.get_restored_checkpoint_id()
        self.held = list(self.state.get()) if context.is_restored() else []

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.held)

    def flat_map(self, value: Any) -> Any:
        self.held.append(value.value)
        if len(self.held) == 2:
            yield (sum(self.held),)
            self.held = []


@pytest.fixture
def states() -> StageStates:
    return StageStates({UID: OperatorSchemas()}, parallelism=1, max_parallelism=1, restored={})


def open_chain(storage: CheckpointStorage, task: NodeTask, subtask: int = 0) -> FunctionChain:
    context = SubtaskContext(
        job_id="0" * 32,
        subtask=subtask,
        parallelism=subtask + 1,
        max_parallelism=subtask + 1,
        now_ms=0,
        logical_date=None,
        state_backend=MemoryStateBackend(),
    )
    chain = FunctionChain([task], context, storage, in_memory(storage))
    chain.open()
    return chain


def save(chain: FunctionChain, storage: CheckpointStorage, checkpoint_id: int) -> tuple[OperatorState, ...]:
    moment = StateCapture(checkpoint=CheckpointMetaData(checkpoint_id, datetime.fromtimestamp(0, UTC)))
    written = chain.write_state(moment, file_streams(storage))
    chain.close()
    return tuple(each.state for each in written.values() if each.state is not None)


def run_increment(folder: Path, states: StageStates, checkpoint_id: int, values: list[int]) -> list[int]:
    """Run an increment of one subtask and return what it gives."""
    storage = CheckpointStorage.open(f"file://{folder}")
    task = NodeTask(
        uid=UID,
        node=MapNode(uid="buffering", function=Buffering(), output="value bigint"),
        output_schema=SCHEMA,
        states=states.of(UID),
        restored_checkpoint_id=states.saved_with(UID),
    )
    chain = open_chain(storage, task)
    batch = pa.record_batch({"value": pa.array(values, pa.int64())}, schema=SCHEMA)
    given = [value for elements in chain.process([batch], ()) for value in elements.table()["value"].to_pylist()]
    saved = save(chain, storage, checkpoint_id)
    states.update([TaskReport(vertex=0, subtask=0, states=saved)], [[UID]], checkpoint_id)
    return given


def test_function_is_told_that_it_goes_on_from_the_increment_before(tmp_path: Path, states: StageStates) -> None:
    assert run_increment(tmp_path, states, 1, [1, 2, 3]) == [3]
    assert run_increment(tmp_path, states, 0, [4, 5]) == [7]
    assert run_increment(tmp_path, states, 2, [6]) == [11]


def test_function_knows_with_which_checkpoint_it_was_saved(tmp_path: Path, states: StageStates) -> None:
    assert states.saved_with(UID) is None
    run_increment(tmp_path, states, 5, [1])
    assert states.saved_with(UID) == 5


def test_function_that_never_ran_is_told_so(tmp_path: Path, states: StageStates) -> None:
    states.update([], [[UID]], 1)
    assert states.saved_with(UID) is None


def union(name: str) -> OperatorSubtaskState:
    meta = OperatorStateMeta(offsets=(0,), mode=DistributionMode.UNION)
    handle = OperatorStateHandle(states=(("union", meta),), stream=ByteStreamStateHandle(name, b"x"))
    return OperatorSubtaskState(managed_operator=(handle,))


def restored(state: OperatorState) -> StageStates:
    target = RestoreTarget(
        operator_id=state.operator_id,
        uid=UID,
        parallelism=SUBTASKS,
        max_parallelism=4,
        is_max_parallelism_configured=True,
    )
    dealt = assign_states([target], [state]).subtask_states
    return StageStates(
        {UID: OperatorSchemas()},
        parallelism=SUBTASKS,
        max_parallelism=4,
        restored=dealt,
        unchanged={UID: state},
        restored_checkpoint_id=3,
    )


def test_union_list_of_a_function_that_did_not_run_is_saved_once_and_not_by_each_subtask() -> None:
    saved = OperatorState(
        operator_id=operator_id_of(UID),
        uid=UID,
        parallelism=SUBTASKS,
        max_parallelism=4,
        subtask_states={0: union("a"), 1: union("b")},
    )
    (again,) = restored(restored(saved).operator_states()[0]).operator_states()
    assert again == saved


def test_function_that_ran_since_the_restore_is_saved_as_it_is_now() -> None:
    saved = OperatorState(
        operator_id=operator_id_of(UID), uid=UID, parallelism=1, max_parallelism=4, subtask_states={0: union("a")}
    )
    states = restored(saved)
    states.update([TaskReport(vertex=0, subtask=index) for index in range(SUBTASKS)], [[UID]], 4)
    (now,) = states.operator_states()
    assert (now.parallelism, now.subtask_states) == (SUBTASKS, {})


def test_union_list_that_a_function_does_not_ask_for_is_saved_by_one_subtask(tmp_path: Path) -> None:
    storage, backend = CheckpointStorage.open(tmp_path.as_uri()), DefaultOperatorStateBackend()
    backend.get_union_list_state(ListStateDescriptor("union", int)).update([7])
    states = dict.fromkeys(range(SUBTASKS), saved_subtask(backend, file_streams(storage)))
    node = MapNode(uid="buffering", function=Buffering(), output="value bigint")
    task = NodeTask(uid=UID, node=node, output_schema=SCHEMA, states=states, restored_checkpoint_id=1)
    saved = [save(open_chain(storage, task, subtask), storage, 2)[0].subtask_states[subtask] for subtask in states]
    unions = [dict(handle.states)["union"] for each in saved for handle in each.managed_operator]
    assert [meta.offsets for meta in unions] == [(0,), ()]


class Totals(MapFunction[Any, Any], CheckpointedFunction):
    """Keeps a state that queries find as ``total``."""

    def initialize_state(self, context: Any) -> None:
        descriptor = ValueStateDescriptor("sum", int, queryable_name="total")
        self.state = context.get_keyed_state_store().get_state(descriptor)

    def snapshot_state(self, context: Any) -> None:
        """Has no state but that of its keys."""

    def map(self, value: Any) -> Any:
        return value


def test_name_of_several_states_of_a_stage_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, keys = CheckpointStorage.open(str(tmp_path)), KeySerializer((KeyField("value", pa.int64()),))
    operators = [
        PlannedNode(
            uid=f"stage/{name}", node=MapNode(uid=name, function=Totals()), output_schema=SCHEMA, key_serializer=keys
        )
        for name in ("first", "second")
    ]
    types = probe_schemas(operators[:1], storage=storage, logical_date=None)
    assert types["stage/first"].keyed[0].queryable_name == "total"
    assert not caplog.records
    probe_schemas(operators, storage=storage, logical_date=None)
    [record] = caplog.records
    assert "'total' has several states in this stage: 'sum' of 'stage/first', 'sum' of 'stage/second'" in record.message
