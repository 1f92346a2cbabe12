"""
Spark jobs and tasks of one increment.

A job is one DataFrame: the rows of the increment, a shuffle before each keyed vertex, and ``mapInArrow`` for each
vertex. It returns the reports of the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.spark.stages.aggregates import aggregated, single_results
from airflow_provider_statecheck.spark.stages.executor.elements import (
    CONTROL,
    EMPTY_MESSAGE,
    OVERFLOW_PREFIX,
    ROWS_COLUMN,
)
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport, VertexTask
from airflow_provider_statecheck.spark.stages.planning import (
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    PlannedNode,
    PlannedVertex,
    with_key_groups,
)
from airflow_provider_statecheck.spark.stages.stage import Aggregate, AggregateNode, KeyNode
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.spark.tables.alignment import InputColumns, aligned, positional
from airflow_provider_statecheck.spark.tables.schemas import spark_schema
from airflow_provider_statecheck.spark.versions import repartition_by_id
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_provider_statecheck.spark.connectors.sink import Sink

log = logging.getLogger(__name__)

INLINE_BUDGET = 4 * 1024 * 1024
"""Maximum size of the inline state of all subtasks of a function that one task carries, in bytes."""
KEYS_PER_ROW = 0.1
"""
Threshold for combining, which needs an extra shuffle.

On TPC-H, jobs with 0.013 keys per row are a third faster, with 0.26 a third slower.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementTasks:
    """Creates the jobs of the increments of an attempt, and their tasks."""

    columns: InputColumns
    """Columns of the source for which the vertices were planned."""
    vertices: Sequence[PlannedVertex]
    states: StageStates
    sink: Sink | None
    storage: CheckpointStorage
    attempt: AttemptRef
    config: CheckpointConfig
    """Settings of the checkpoint storage."""
    context: SubtaskContext
    broadcast: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """Packed rows of broadcast inputs by the uids of the functions, which the tasks of the next increment see first."""
    combining: Combining
    """Decides whether Spark combines aggregates before the shuffle."""

    def job(self, frame: DataFrame, moment: StateCapture, *, is_woken: bool = False) -> DataFrame:
        """
        Return the DataFrame of an increment; collecting it runs the increment and returns the reports of its tasks.

        :param frame: The rows of the increment.
        :param moment: Checkpoint of the increment.
        :param is_woken: Whether there are no rows, and every keyed subtask gets an empty message, so that it runs.
            Spark runs no task for an input that it knows to be empty.
        """
        frame = self.aligned(frame)
        for vertex, task in zip(self.vertices, self.of(moment, is_woken=is_woken), strict=True):
            if vertex.key is not None and is_woken and task.vertex == 0:
                frame = _messages(frame.sparkSession, task)
            elif vertex.key is not None:
                frame = _keyed(frame, vertex.key, vertex, task, combines=self.combining.is_on)
                frame = _with_messages(frame, task) if is_woken else frame
                frame = repartition_by_id(frame, task.context.parallelism, SUBTASK_COLUMN).drop(SUBTASK_COLUMN)
            elif vertex.has_fixed_subtasks:
                frame = _with_ends(frame, task) if task.has_control else frame
                frame = frame.coalesce(task.context.parallelism)
            frame = _mapped(frame, task)
        return frame

    @property
    def adds_partials(self) -> bool:
        """Whether tasks of the first vertex save partial results without earlier state, in files that are kept."""
        vertex, backend = self.vertices[0], self.context.state_backend
        is_kept = isinstance(backend, ArrowStateBackend) and backend.is_incremental
        is_free = is_kept and not self.broadcast and not self.combining.is_wanted
        return vertex.key is not None and vertex.functions[0].adds_partials and is_free

    @property
    def maps_rows(self) -> bool:
        """Whether all functions are of single rows and have neither state nor an end."""
        vertex = self.vertices[0]
        return len(self.vertices) == 1 and not vertex.has_fixed_subtasks and not self.broadcast

    def fits(self, frame: DataFrame) -> bool:
        """Return whether the functions are planned for the rows of an increment."""
        return self.columns.with_rows(frame.schema, frame.sparkSession) is self.columns

    def aligned(self, frame: DataFrame) -> DataFrame:
        """Return rows with the columns for which the vertices were planned."""
        return aligned(frame, self.columns.schema)

    def of(self, moment: StateCapture, *, is_woken: bool = False) -> list[VertexTask]:
        """Return the tasks of an increment, one for each vertex; the arguments are those of :meth:`job`."""
        return [self._task(number, vertex, moment, is_woken=is_woken) for number, vertex in enumerate(self.vertices)]

    def _task(self, number: int, vertex: PlannedVertex, moment: StateCapture, *, is_woken: bool) -> VertexTask:
        is_last = number == len(self.vertices) - 1
        return VertexTask(
            vertex=number,
            functions=tuple(self.function_task(function) for function in vertex.functions),
            order=_order_of(vertex),
            output_schema=vertex.output_schema,
            is_last=is_last,
            has_control=number > 0 or _gets_messages(vertex, moment, is_woken=is_woken),
            sink=self.sink if is_last else None,
            storage=self.storage,
            attempt=self.attempt,
            # With many subtasks less, because every task of the next increment carries all inline state.
            config=self.task_config(INLINE_BUDGET // self.context.parallelism),
            moment=moment,
            context=self.context,
        )

    def task_config(self, inline_bytes: int) -> CheckpointConfig:
        """
        Return the settings of the checkpoint storage for tasks.

        :param inline_bytes: Maximum size of inline state of one task.
        """
        config = self.config.subset(option.name for option in CheckpointConfig.options())
        config.data_inline_threshold = min(config.data_inline_threshold, inline_bytes)
        return config

    def function_task(self, function: PlannedNode) -> NodeTask:
        """Return a function for tasks, with its state."""
        return NodeTask.of(
            function,
            states=self.states.of(function.uid),
            schemas=self.states.restored_schemas.get(function.uid),
            broadcast=self.broadcast.get(function.uid, ()),
            restored_checkpoint_id=self.states.saved_with(function.uid),
        )


def _gets_messages(vertex: PlannedVertex, moment: StateCapture, *, is_woken: bool) -> bool:
    """Return whether each subtask of the first vertex gets a message, so that it runs without rows."""
    return is_woken if vertex.key is not None else moment.is_end_of_input and vertex.ends_without_rows


def _mapped(frame: DataFrame, task: VertexTask) -> DataFrame:
    named = replace(task, columns=tuple(frame.columns))
    return positional(frame).mapInArrow(named, spark_schema(task.passed_schema))


def _order_of(vertex: PlannedVertex) -> tuple[str, ...]:
    if vertex.key is None:
        return ()
    if isinstance(vertex.functions[0].node, AggregateNode):
        return (KEY_GROUP_COLUMN,)
    return (KEY_GROUP_COLUMN, *vertex.key.columns, *vertex.key.order_by)


def _keyed(frame: DataFrame, key: KeyNode, vertex: PlannedVertex, task: VertexTask, *, combines: bool) -> DataFrame:
    from pyspark.sql import functions as F

    function, has_control = vertex.functions[0], task.has_control
    if isinstance(function.node, AggregateNode):
        frame = _partial_aggregates(frame, key, function, has_control=has_control, combines=combines)
    keyed = with_key_groups(frame, key.columns, task.context.max_parallelism, task.context.parallelism)
    if not has_control:
        return keyed
    # Messages have no key; they go to the first subtask.
    target = F.when(F.col(CONTROL).isNull(), F.col(SUBTASK_COLUMN)).otherwise(F.lit(0))
    return keyed.withColumn(SUBTASK_COLUMN, target)


def _partial_aggregates(
    frame: DataFrame, key: KeyNode, function: PlannedNode, *, has_control: bool, combines: bool
) -> DataFrame:
    """
    Return the key columns and, under the name of each aggregate, its partial result; messages are passed through.

    Combined rows have their number as their last column, and before it whether a sum of decimals is too large.
    """
    from pyspark.sql import functions as F

    node = cast("AggregateNode", function.node)
    if combines and not has_control:
        flags = [_is_too_large(node.aggregates[name]).alias(OVERFLOW_PREFIX + name) for name in function.decimal_sums]
        return aggregated(frame, key, node, *flags, F.count(F.lit(1)).alias(ROWS_COLUMN))
    return single_results(
        frame, key, node, function.output_schema, node.aggregates, *([CONTROL] if has_control else [])
    )


def _is_too_large(aggregate: Aggregate) -> Column:
    from pyspark.sql import functions as F

    # Without ANSI mode, a sum of values that is too large is null.
    value = F.expr(aggregate.expression)
    return F.sum(value).isNull() & (F.count(value) > 0)


def _with_message_column(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.withColumn(CONTROL, F.lit(None).cast("binary"))


def _with_ends(frame: DataFrame, task: VertexTask) -> DataFrame:
    from pyspark.sql import functions as F

    # With a partition for each subtask, at least as many are left to coalesce.
    subtasks = task.context.parallelism
    messages = frame.sparkSession.range(0, subtasks, 1, subtasks)
    return _with_rows(_with_message_column(frame), messages, {CONTROL: F.lit(EMPTY_MESSAGE)})


def _messages(spark: SparkSession, task: VertexTask) -> DataFrame:
    """Return an empty message for each subtask, in a partition of its own, so that nothing is shuffled."""
    from pyspark.sql import functions as F

    subtasks = task.context.parallelism
    return spark.range(0, subtasks, 1, subtasks).select(F.lit(EMPTY_MESSAGE).alias(CONTROL))


def _with_messages(frame: DataFrame, task: VertexTask) -> DataFrame:
    from pyspark.sql import functions as F

    subtasks = frame.sparkSession.range(task.context.parallelism)
    return _with_rows(frame, subtasks, {SUBTASK_COLUMN: F.col("id").cast("int"), CONTROL: F.lit(EMPTY_MESSAGE)})


def _with_rows(frame: DataFrame, further: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Add rows that have values in some columns, and null in the others."""
    from pyspark.sql import functions as F

    # By position: names of columns may differ only in case.
    fields = [(values.get(each.name, F.lit(None)), each) for each in frame.schema.fields]
    return frame.unionAll(further.select([value.cast(each.dataType).alias(each.name) for value, each in fields]))


class Combining:
    """
    Decides for each increment whether Spark combines aggregates before the shuffle, which makes a job of each.

    Without a setting, the first increment does not combine, and its keys per row decide about the next ones.

    :param wanted: The user's setting; ``None`` to decide by keys per row.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self._pays: bool | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the user has asked for it."""
        return self._wanted is True

    @property
    def is_on(self) -> bool:
        """Whether the next increment combines."""
        return bool(self._pays) if self._wanted is None else self._wanted

    def observe(self, reports: Iterable[TaskReport]) -> None:
        """Update the decision after an increment that did not combine."""
        first = [report for report in reports if report.vertex == 0]
        rows, keys = sum(report.rows for report in first), sum(report.keys for report in first)
        if self.is_on or not keys:
            return
        pays = keys < KEYS_PER_ROW * rows
        if pays is not self._pays and self._wanted is None:
            action = "combined before the shuffle" if pays else "shuffled one by one"
            log.info("Rows are %s from now on: %s in %s", action, counted(keys, "key"), counted(rows, "row"))
        self._pays = pays
