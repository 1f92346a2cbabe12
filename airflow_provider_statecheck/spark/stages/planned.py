"""A stage whose columns are known: what is the same in each of its increments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.key_groups import key_serializer_of
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, KeyNode, MapNode
from airflow_provider_statecheck.spark.stages.output_schemas import arrow_of_spark, arrow_schema_of, spark_of_arrow
from airflow_provider_statecheck.spark.stages.quoting import quoted
from airflow_provider_statecheck.spark.stages.vertices import FunctionNode, Vertex
from airflow_provider_statecheck.state.functions.checkpointed_function import CheckpointedFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator:
    """A function with its columns."""

    uid: str
    """Within the job."""
    node: FunctionNode
    input_schema: Any
    """Arrow schema of what it is given."""
    output_schema: Any
    """Of what it gives; ``None`` for nothing."""
    key_serializer: KeySerializer | None = None
    time_column: str | None = None
    """By which elements are ordered, if that is a time."""

    @property
    def operator_id(self) -> str:
        """Return what its state is known by."""
        return operator_id_of(self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVertex:
    """A vertex with its columns."""

    key: KeyNode | None
    operators: tuple[PlannedOperator, ...]
    input_schema: Any
    output_schema: Any
    """Of what its last function gives; that of the input where there is no function."""

    @property
    def has_fixed_subtasks(self) -> bool:
        """Tell whether state belongs to its subtasks, so that there must be as many as the parallelism says."""
        return self.key is not None or any(
            isinstance(operator.node, MapNode) and isinstance(operator.node.function, CheckpointedFunction)
            for operator in self.operators
        )


class StagePlanner:
    """
    Finds the columns of a stage, function by function.

    :param spark: The session that reads DDL.
    :param stage_uid: Of the stage within its job.
    """

    def __init__(self, spark: SparkSession, stage_uid: str) -> None:
        self._spark = spark
        self._stage_uid = stage_uid

    def plan(self, vertices: Sequence[Vertex], frame: DataFrame) -> tuple[PlannedVertex, ...]:
        """
        Return the vertices with their columns.

        :param frame: With the columns of the source.
        :raises InvalidConfigurationError: for a column that is not there, or a declaration that is no schema.
        :raises UnsupportedStateError: for a key of a type that cannot be one.
        """
        planned: list[PlannedVertex] = []
        schema = arrow_of_spark(frame.schema)
        for vertex in vertices:
            planned.append(self._vertex(vertex, schema))
            schema = planned[-1].output_schema
        return tuple(planned)

    def _vertex(self, vertex: Vertex, schema: Any) -> PlannedVertex:
        _require_columns(vertex, schema)
        operators: list[PlannedOperator] = []
        given = schema
        for position, node in enumerate(vertex.functions):
            key = vertex.key if position == 0 else None
            operators.append(self._operator(node, key, given))
            given = operators[-1].output_schema
        return PlannedVertex(key=vertex.key, operators=tuple(operators), input_schema=schema, output_schema=given)

    def _operator(self, node: FunctionNode, key: KeyNode | None, schema: Any) -> PlannedOperator:
        serializer = None if key is None else key_serializer_of(_empty(self._spark, schema), key.columns)
        return PlannedOperator(
            uid=f"{self._stage_uid}/{node.uid}",
            node=node,
            input_schema=schema,
            output_schema=self._output(node, key, schema),
            key_serializer=serializer,
            time_column=None if key is None else _time_column(key, schema),
        )

    def _output(self, node: FunctionNode, key: KeyNode | None, schema: Any) -> Any:
        if isinstance(node, AggregateNode):
            return self._aggregated(node, cast("KeyNode", key), schema)
        if node.output is None:
            return schema if isinstance(node, MapNode) else None
        return arrow_schema_of(self._spark, node.output, node.uid)

    def _aggregated(self, node: AggregateNode, key: KeyNode, schema: Any) -> Any:
        from pyspark.sql import functions as F

        clash = set(key.columns) & set(node.aggregates)
        if clash:
            raise InvalidConfigurationError(
                f"Expected aggregates with other names than the columns of the key, found {sorted(clash)}; rename them."
            )
        wanted = [
            getattr(F, each.spark_function)(F.expr(each.expression)).alias(name)
            for name, each in node.aggregates.items()
        ]
        frame = _empty(self._spark, schema).groupBy(*[quoted(name) for name in key.columns]).agg(*wanted)
        return arrow_of_spark(frame.schema)


def _time_column(key: KeyNode, schema: Any) -> str | None:
    import pyarrow as pa

    first = key.order_by[0] if key.order_by else None
    return first if first is not None and pa.types.is_timestamp(schema.field(first).type) else None


def _empty(spark: SparkSession, schema: Any) -> DataFrame:
    return spark.createDataFrame([], spark_of_arrow(schema))


def _require_columns(vertex: Vertex, schema: Any) -> None:
    wanted = () if vertex.key is None else (*vertex.key.columns, *vertex.key.order_by)
    missing = [name for name in wanted if schema.names.count(name) != 1]
    if missing:
        raise InvalidConfigurationError(
            f"Expected each column of key_by once among those that are there, found {missing} missing or repeated in "
            f"{schema.names}."
        )
