"""Planning of a stage: vertices and output columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.key_groups import key_serializer_of
from airflow_provider_statecheck.spark.stages.stage import AggregateNode, KeyNode, MapNode, ProcessNode, Stage
from airflow_provider_statecheck.state.functions.user_functions import CheckpointedFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


FunctionNode = MapNode | ProcessNode | AggregateNode


@dataclass(frozen=True, slots=True)
class Vertex:
    """Functions that follow each other in one Spark task."""

    key: KeyNode | None
    """What brought the elements together; ``None`` in front of the first key."""
    functions: tuple[FunctionNode, ...]


def vertices_of(stage: Stage) -> tuple[Vertex, ...]:
    """
    Cut a stage where elements are shuffled.

    :raises InvalidConfigurationError: for a stage without a source, or whose parts do not fit.
    """
    if stage.input is None or not (stage.nodes or stage.output):
        raise InvalidConfigurationError(
            "Expected a stage with a source and a function or a sink, found a part of it; complete the declaration."
        )
    vertices = [Vertex(None, ())]
    for node in stage.nodes:
        if isinstance(node, KeyNode):
            vertices.append(Vertex(node, ()))
        else:
            last = vertices[-1]
            vertices[-1] = Vertex(last.key, (*last.functions, node))
    _require_fitting(vertices)
    _require_outputs(stage)
    is_needless = not vertices[0].functions and len(vertices) > 1
    return tuple(vertices[1:] if is_needless else vertices)


def _require_fitting(vertices: list[Vertex]) -> None:
    for vertex in vertices:
        if vertex.key is not None and not vertex.functions:
            raise InvalidConfigurationError(
                f"Expected a function behind key_by{vertex.key.columns}, found none; add process, aggregate or map."
            )
        for position, node in enumerate(vertex.functions):
            if not isinstance(node, MapNode) and (vertex.key is None or position > 0):
                raise InvalidConfigurationError(
                    f"Expected key_by right before the function {node.uid!r} with keyed state, found none there."
                )


def _require_outputs(stage: Stage) -> None:
    for position, node in enumerate(stage.nodes):
        is_read = position + 1 < len(stage.nodes) or stage.output is not None
        if isinstance(node, ProcessNode) and node.output is None and is_read:
            raise InvalidConfigurationError(
                f"Expected the columns of what {node.uid!r} gives, because something reads it, found none; give output=, "
                f"such as output='account string, balance double'."
            )


def arrow_schema_of(spark: SparkSession, declared: Any, uid: str) -> Any:
    """
    Return what a function gives as an Arrow schema.

    :param declared: What stands behind ``output=``.
    :param uid: Of the function, for people.
    :raises InvalidConfigurationError: for what is no schema.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, StructType):
        return arrow_of_spark(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        from airflow_provider_statecheck.state.serializers.resolve import serializer_of

        return pa.schema(list(serializer_of(declared).arrow_type))
    if isinstance(declared, str):
        return arrow_of_spark(_parsed(spark, declared, uid))
    raise InvalidConfigurationError(
        f"Expected output= of {uid!r} to be a DDL text, a schema of Spark or Arrow or a dataclass, found {declared!r}."
    )


def arrow_of_spark(schema: Any) -> Any:
    """Return the Arrow schema in which Spark gives rows of a schema to Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def spark_of_arrow(schema: Any) -> Any:
    """Return the schema of Spark for rows that Python gives as Arrow batches."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _parsed(spark: SparkSession, ddl: str, uid: str) -> Any:
    from pyspark.errors import PySparkException

    try:
        return spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        raise InvalidConfigurationError(
            f"Expected output= of {uid!r} to be columns such as 'account string, balance double', found {ddl!r}: {error}"
        ) from error


def quoted(name: str) -> str:
    """Return the name of a column so that Spark takes it as it is, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


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
