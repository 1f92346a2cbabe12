"""One increment as a DataFrame: what is read, shuffled and run until only reports are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.key_groups import SUBTASK_COLUMN, with_key_groups
from airflow_provider_statecheck.spark.stages.executor.columns import CONTROL, EMPTY_MESSAGE
from airflow_provider_statecheck.spark.stages.executor.vertex_task import VertexTask
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, KeyNode
from airflow_provider_statecheck.spark.stages.output_schemas import spark_of_arrow
from airflow_provider_statecheck.spark.stages.partial_aggregates import partial_aggregates
from airflow_provider_statecheck.spark.stages.planned import PlannedVertex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
