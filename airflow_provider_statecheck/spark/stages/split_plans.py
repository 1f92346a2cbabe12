"""
Plans of Spark jobs over many increments, whose tasks commit their parts.

Tasks read the files of a source themselves where PyArrow reads the same rows as Spark and computes the same values.
Otherwise Spark reads the rows, and sends each task the columns of the key and the partial results of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.spark.connectors.file_parts import FileParts
from airflow_provider_statecheck.spark.connectors.row_groups import row_group_reader
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.stages.aggregates import single_results
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.row_results import RowResult
from airflow_provider_statecheck.spark.stages.executor.split_input import (
    INCREMENT_COLUMN,
    FileRows,
    SentRows,
    SplitInput,
)
from airflow_provider_statecheck.spark.stages.executor.split_task import RowWiseSplitTask, SplitTask, record_schema
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementTasks
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, Count, KeyNode
from airflow_provider_statecheck.spark.tables.alignment import positional
from airflow_provider_statecheck.spark.tables.cutting import find_column
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, is_arrow_compatible, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider_statecheck.spark.stages.planning import PlannedNode, PlannedVertex

INLINE_BUDGET_OF_JOB = 256 * 1024
"""Maximum size of the inline state of all tasks of a job over many increments, in bytes."""
_TASKS_PER_CORE = 4
_PARTS_PER_TASK = 8


class SplitPlan:
    """
    Plans jobs of the tasks of an attempt.

    :param tasks: Tasks that need no earlier state.
    """

    def __init__(self, tasks: IncrementTasks) -> None:
        self.tasks = tasks

    def of_frames(self, frames: Sequence[DataFrame], records: str) -> DataFrame:
        """
        Return a job over rows that Spark reads; collecting it returns the records of its tasks.

        :param frames: The rows of each increment.
        :param records: Directory of the records.
        """
        from pyspark.sql import functions as F

        aligned = self.tasks.aligned
        frame = _union([aligned(frame).withColumn(INCREMENT_COLUMN, F.lit(n)) for n, frame in enumerate(frames)])
        task: SplitTask | RowWiseSplitTask
        if self.tasks.maps_rows:
            [of_vertex] = self.tasks.of(_moment())
            task = RowWiseSplitTask(task=replace(of_vertex, columns=tuple(frame.columns[:-1])), records=records)
        else:
            node, schema, names = self._node, self._function.output_schema, computed(results_of_rows(self._function))
            frame = single_results(frame, self._key, node, schema, names, INCREMENT_COLUMN)
            task = self._task(SentRows(columns=tuple(frame.columns)), records, len(frames))
        return positional(frame).mapInArrow(task, spark_schema(record_schema()))

    @cached_property
    def file_columns(self) -> StructType | None:
        """The columns that tasks that read files need; ``None`` if Spark must read the rows."""
        from pyspark.sql.types import StructType

        if self.tasks.maps_rows or self._results_of_columns is None:
            return None
        needed = {*self._key.columns, *(result.column for result in self._results_of_columns.values())}
        return StructType([field for field in self.tasks.columns.schema.fields if field.name in needed])

    def rows_of_files(self, parts: Sequence[FileParts], cores: int) -> FileRows:
        """
        Return the rows of files.

        :param parts: The row groups of each increment, with the columns that tasks need.
        :param cores: Number of cores to occupy.
        """
        reader, spans = row_group_reader(parts, cores)
        return FileRows(reader=reader, spans=spans, keys=self._key.columns, results=self._results_of_columns or {})

    @cached_property
    def _results_of_columns(self) -> dict[str, RowResult] | None:
        kinds, found = self._function.output_schema, {}
        for name in computed(results_of_rows(self._function)):
            of_rows = RowResult.of(self._node.aggregates[name], kinds.field(name).type, self._column)
            if of_rows is None:
                return None
            found[name] = of_rows
        return found

    def _column(self, name: str) -> Any:
        """Return the Arrow field of a column; ``None`` if there is none whose values tasks read."""
        from pyspark.sql.types import StructType

        schema = self.tasks.columns.schema
        found = find_column(schema.names, name, is_case_sensitive=self._function.is_case_sensitive)
        if found is None or not is_arrow_compatible(schema[found].dataType):
            return None
        return arrow_schema(StructType([schema[found]])).field(0)

    def of_files(self, spark: SparkSession, rows: FileRows, increments: int, records: str) -> DataFrame:
        """
        Return a job whose tasks read files; collecting it returns the records of its tasks.

        :param increments: Number of increments.
        :param records: Directory of the records.
        """
        task = self._task(rows, records, increments)
        count = len(rows.spans)
        # A task commits each part, so that small ones can share a task.
        tasks = min(count, max(_TASKS_PER_CORE * cores_of(spark), count // _PARTS_PER_TASK))
        return spark.range(0, count, 1, tasks).mapInArrow(task, spark_schema(record_schema()))

    @property
    def _vertex(self) -> PlannedVertex:
        return self.tasks.vertices[0]

    @property
    def _key(self) -> KeyNode:
        return cast("KeyNode", self._vertex.key)

    @property
    def _function(self) -> PlannedNode:
        return self._vertex.functions[0]

    @property
    def _node(self) -> AggregateNode:
        return cast("AggregateNode", self._function.node)

    def _task(self, rows: SplitInput, records: str, increments: int) -> SplitTask:
        tasks = self.tasks
        return SplitTask(
            function=replace(tasks.function_task(self._function), states={}),
            storage=tasks.storage,
            attempt=tasks.attempt,
            # Each checkpoint has the inline state of all tasks so far.
            config=tasks.task_config(INLINE_BUDGET_OF_JOB // (increments * tasks.context.parallelism)),
            moment=_moment(),
            context=replace(tasks.context, parallelism=1),
            records=records,
            input=rows,
            results=results_of_rows(self._function),
        )


def _moment() -> StateCapture:
    # What a task writes belongs to whichever checkpoint comes next.
    return StateCapture(checkpoint=CheckpointMetaData(0, datetime.now(UTC)))


def results_of_rows(function: PlannedNode) -> dict[str, str | None]:
    """
    Return the aggregate that has the same partial result of each row, by the name of each aggregate.

    It is itself the first one with an expression, and ``None`` if each row counts as one.
    """
    first: dict[tuple[Any, ...], str] = {}
    found: dict[str, str | None] = {}
    for name, aggregate in cast("AggregateNode", function.node).aggregates.items():
        is_count = isinstance(aggregate, Count)
        identity = (aggregate.expression, is_count, function.output_schema.field(name).type)
        counts_all = is_count and aggregate == Count()
        found[name] = None if counts_all else first.setdefault(identity, name)
    return found


def computed(results: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the aggregates whose partial results are computed for each row; others have the same ones."""
    return (name for name, column in results.items() if name == column)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several DataFrames, in their order, by a plan whose depth is small."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return _union(frames[:middle]).unionAll(_union(frames[middle:]))
