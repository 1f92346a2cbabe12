"""The tasks of one increment: what stays the same in all of them, with the state that the last one left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.spark.stages.combining import Combining
from airflow_provider_statecheck.spark.stages.executor.columns import KEY_GROUP
from airflow_provider_statecheck.spark.stages.executor.control import SnapshotMoment
from airflow_provider_statecheck.spark.stages.executor.operator_task import OperatorTask
from airflow_provider_statecheck.spark.stages.executor.task_storage import TaskStorage
from airflow_provider_statecheck.spark.stages.executor.vertex_task import VertexTask
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode
from airflow_provider_statecheck.spark.stages.planned import PlannedOperator, PlannedVertex
from airflow_provider_statecheck.spark.stages.stage_states import StageStates
from airflow_provider_statecheck.state.schemas import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sinks.sink import Sink

INLINE_BUDGET = 4 * 1024 * 1024
"""How many bytes of inline state a task may carry along for all subtasks of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementTasks:
    """Makes the tasks of each increment of an attempt."""

    vertices: Sequence[PlannedVertex]
    states: StageStates
    schemas: Mapping[str, OperatorSchemas]
    """Of the restored state, by the uid of its operator."""
    sink: Sink | None
    storage: CheckpointStorage
    state_directory: str
    attempt: AttemptRef
    state_backend: Any
    data_inline_threshold: int
    """In bytes; with many subtasks it is less, because what is inline travels with every task of the next increment."""
    logical_date: datetime | None
    now_ms: int
    """By which state expires, the same in each try of a run."""
    combining: Combining
    """Whether aggregates are combined in the JVM before the shuffle."""

    def of(self, moment: SnapshotMoment, *, is_woken: bool = False) -> list[VertexTask]:
        """
        Return the tasks of an increment, one for each vertex.

        :param is_woken: Whether subtasks behind a key get empty messages.
        """
        return [self._task(number, vertex, moment, is_woken=is_woken) for number, vertex in enumerate(self.vertices)]

    def _task(self, number: int, vertex: PlannedVertex, moment: SnapshotMoment, *, is_woken: bool) -> VertexTask:
        is_last = number == len(self.vertices) - 1
        return VertexTask(
            vertex=number,
            operators=tuple(self._operator(operator) for operator in vertex.operators),
            order=_order_of(vertex),
            output_schema=vertex.output_schema,
            is_last=is_last,
            has_control=number > 0 or (is_woken and vertex.key is not None),
            sink=self.sink if is_last else None,
            state_directory=self.state_directory,
            storage=TaskStorage.of(self.storage),
            data_inline_threshold=min(self.data_inline_threshold, INLINE_BUDGET // self.states.parallelism),
            moment=moment,
            job_id=self.attempt.job_id,
            parallelism=self.states.parallelism,
            max_parallelism=self.states.max_parallelism,
            epoch=self.attempt.epoch,
            now_ms=self.now_ms,
            logical_date=self.logical_date,
            state_backend=self.state_backend,
        )

    def _operator(self, operator: PlannedOperator) -> OperatorTask:
        return OperatorTask(
            uid=operator.uid,
            operator_id=operator.operator_id,
            node=operator.node,
            input_schema=operator.input_schema,
            output_schema=operator.output_schema,
            key_serializer=operator.key_serializer,
            time_column=operator.time_column,
            states=self.states.of(operator.uid),
            schemas=self.schemas.get(operator.uid),
            restored_checkpoint_id=self.states.saved_with(operator.uid),
        )


def _order_of(vertex: PlannedVertex) -> tuple[str, ...]:
    if vertex.key is None:
        return ()
    if isinstance(vertex.operators[0].node, AggregateNode):
        return (KEY_GROUP,)
    return (KEY_GROUP, *vertex.key.columns, *vertex.key.order_by)
