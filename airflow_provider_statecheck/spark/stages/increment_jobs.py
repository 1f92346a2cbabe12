"""Spark jobs and tasks of one increment."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.spark.driver.session import is_connect
from airflow_provider_statecheck.spark.key_groups import SUBTASK_COLUMN, with_key_groups
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL, EMPTY_MESSAGE, KEY_GROUP
from airflow_provider_statecheck.spark.stages.executor.task_control import (
    OperatorTask,
    SnapshotMoment,
    TaskReport,
    TaskStorage,
)
from airflow_provider_statecheck.spark.stages.executor.vertex_task import VertexTask
from airflow_provider_statecheck.spark.stages.planning import PlannedOperator, PlannedVertex, quoted, spark_of_arrow
from airflow_provider_statecheck.spark.stages.stage import Aggregate, AggregateNode, KeyNode
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from airflow_provider_statecheck.state.schemas import OperatorSchemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_provider_statecheck.spark.sinks.sink import Sink


class IncrementJobs:
    """
    Runs jobs one after the other under a tag of their own.

    :param spark: The session that computes.
    """

    def __init__(self, spark: SparkSession) -> None:
        tag = f"statecheck-{uuid.uuid4().hex}"
        self._tags: _SessionTag | _ContextTag = (
            _SessionTag(spark, tag) if is_connect(spark) else _ContextTag(spark, tag)
        )

    def collect(self, frame: DataFrame) -> list[Any]:
        """Run a job and return its rows; other jobs of this thread are not tagged."""
        self._tags.add()
        try:
            return frame.collect()
        finally:
            self._tags.remove()

    def cancel(self) -> None:
        """Cancel the job that runs, from any thread; without one nothing happens."""
        self._tags.cancel()


class _SessionTag:
    """A tag as Spark Connect has them."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag

    def add(self) -> None:
        self._spark.addTag(self._tag)

    def remove(self) -> None:
        self._spark.removeTag(self._tag)

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)


class _ContextTag:
    """A tag of the driver's own context, where those of a session are known to the thread alone that gave them."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._context = spark.sparkContext
        self._tag = tag

    def add(self) -> None:
        self._context.addJobTag(self._tag)

    def remove(self) -> None:
        self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        self._context.cancelJobsWithTag(self._tag)


def partial_aggregates(
    frame: DataFrame, key: KeyNode, node: AggregateNode, output_schema: Any, *, has_control: bool, combines: bool
) -> DataFrame:
    """
    Return the columns of the key and a partial result of each aggregate under its name.

    :param output_schema: Arrow schema with the types of the results.
    :param has_control: Whether messages are among the rows, which are passed on.
    :param combines: Whether Spark combines rows of a key first; with messages it does not.
    """
    from pyspark.sql import functions as F

    keys = [F.col(quoted(name)) for name in key.columns]
    if combines and not has_control:
        wanted = [
            getattr(F, each.spark_function)(F.expr(each.expression)).alias(n) for n, each in node.aggregates.items()
        ]
        return frame.groupBy(*keys).agg(*wanted)
    types = {field.name: field.dataType for field in spark_of_arrow(output_schema).fields}
    single = [_single(each).cast(types[name]).alias(name) for name, each in node.aggregates.items()]
    return frame.select(*keys, *single, *([F.col(CONTROL)] if has_control else []))


def _single(aggregate: Aggregate) -> Column:
    from pyspark.sql import functions as F

    value = F.expr(aggregate.expression)
    if aggregate.spark_function == "count":
        return F.when(value.isNull(), F.lit(0)).otherwise(F.lit(1))
    return value


def increment_frame(
    frame: DataFrame,
    vertices: Sequence[PlannedVertex],
    tasks: Sequence[VertexTask],
    *,
    combines: bool,
    is_woken: bool = False,
) -> DataFrame:
    """
    Return a DataFrame of the reports of an increment; collecting it runs the increment.

    :param frame: The rows of the increment.
    :param tasks: What to run, one for each vertex.
    :param combines: Whether aggregates are combined in the JVM before the shuffle.
    :param is_woken: Whether every subtask behind a key gets an empty message, so that it runs without any rows too; Spark
        runs no task at all where it knows that there are none.
    """
    for number, (vertex, task) in enumerate(zip(vertices, tasks, strict=True)):
        if vertex.key is not None:
            has_control = number > 0 or is_woken
            frame = frame if number > 0 or not is_woken else _with_column_of_messages(frame)
            frame = _keyed(frame, vertex.key, vertex, task, has_control=has_control, combines=combines)
            frame = _with_messages(frame, task) if is_woken else frame
            frame = frame.repartitionById(task.parallelism, SUBTASK_COLUMN).drop(SUBTASK_COLUMN)
        elif vertex.has_fixed_subtasks:
            frame = frame.coalesce(task.parallelism)
        frame = frame.mapInArrow(task, _schema_of(task))
    return frame


def _keyed(
    frame: DataFrame, key: KeyNode, vertex: PlannedVertex, task: VertexTask, *, has_control: bool, combines: bool
) -> DataFrame:
    from pyspark.sql import functions as F

    node = vertex.operators[0].node
    if isinstance(node, AggregateNode):
        operator = vertex.operators[0]
        frame = partial_aggregates(frame, key, node, operator.output_schema, has_control=has_control, combines=combines)
    keyed = with_key_groups(frame, key.columns, task.max_parallelism, task.parallelism)
    if not has_control:
        return keyed
    # Messages have no key; the first subtask takes them.
    target = F.when(F.col(CONTROL).isNull(), F.col(SUBTASK_COLUMN)).otherwise(F.lit(0))
    return keyed.withColumn(SUBTASK_COLUMN, target)


def _with_column_of_messages(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.withColumn(CONTROL, F.lit(None).cast("binary"))


def _with_messages(frame: DataFrame, task: VertexTask) -> DataFrame:
    from pyspark.sql import functions as F

    subtasks = frame.sparkSession.range(task.parallelism)
    subtask, message = F.col("id").cast("int").alias(SUBTASK_COLUMN), F.lit(EMPTY_MESSAGE).alias(CONTROL)
    return frame.unionByName(subtasks.select(subtask, message), allowMissingColumns=True)


def _schema_of(task: VertexTask) -> Any:
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType() if task.is_last else spark_of_arrow(task.output_schema)
    return StructType([*schema.fields]).add(CONTROL, BinaryType(), True)


log = logging.getLogger(__name__)

KEYS_PER_ROW = 0.1
"""Combining is a shuffle more. Measured on TPC-H: with 0.013 keys per row a third faster, with 0.26 a third slower."""


class Combining:
    """
    Decides for each increment; without a choice of the user's the first one runs without, and tells how many keys it has.

    :param wanted: The user's choice, if there is one.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self._pays: bool | None = None

    @property
    def is_on(self) -> bool:
        """Tell whether the next increment combines."""
        return bool(self._pays) if self._wanted is None else self._wanted

    def observe(self, reports: Iterable[TaskReport]) -> None:
        """Learn from an increment that did not combine."""
        first = [report for report in reports if report.vertex == 0]
        rows, keys = sum(report.rows for report in first), sum(report.keys for report in first)
        if self.is_on or not keys:
            return
        pays = keys < KEYS_PER_ROW * rows
        if pays is not self._pays and self._wanted is None:
            log.info("Rows are %s before the shuffle: %s keys in %s rows.", "combined" if pays else "sent", keys, rows)
        self._pays = pays


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
