"""
Planning of a stage: its location, its vertices with their columns, and its key groups.

A vertex is a chain of functions that runs in one Spark task; each ``key_by`` starts a new vertex after a shuffle. The
key group of a row is computed in the JVM.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
from airflow_provider_statecheck.checkpoint.states.handles import require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.connectors.sink import Sink
from airflow_provider_statecheck.spark.connectors.source import Source
from airflow_provider_statecheck.spark.plan_digest import expression_text
from airflow_provider_statecheck.spark.stages.aggregates import result_schema
from airflow_provider_statecheck.spark.stages.ordered_types import PLAIN_TYPES, is_plain_text, uncompared_part
from airflow_provider_statecheck.spark.stages.stage import (
    Aggregate,
    AggregateNode,
    KeyNode,
    MapNode,
    Node,
    ProcessNode,
    Stage,
)
from airflow_provider_statecheck.spark.tables.alignment import is_case_sensitive, is_on, nullable_schema
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, quoted, quoted_column, spark_schema
from airflow_provider_statecheck.spark.versions import repartition_by_id
from airflow_provider_statecheck.state.aggregates import AggregateSchema
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import (
    BoundedOneInput,
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    RichFunction,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


FunctionNode = MapNode | ProcessNode | AggregateNode
_MOST_DIGITS = 38
"""Number of digits of the largest type of decimals in Spark."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A chain of functions that runs in one Spark task."""

    key: KeyNode | None
    """Key of the shuffle before the vertex; ``None`` for the vertex after the source."""
    functions: tuple[FunctionNode, ...]


def vertices_of(stage: Stage) -> tuple[Vertex, ...]:
    """
    Divide a stage into vertices at its shuffles.

    :raises InvalidConfigurationError: if the stage is incomplete, or its steps do not fit together.
    """
    if stage.input is None or not (stage.nodes or stage.output):
        raise InvalidConfigurationError(
            "Expected a stage with a source and a function or a sink, found an incomplete one; complete the "
            "declaration."
        )
    _require_types(stage)
    vertices = [Vertex(None, ())]
    for node in _with_results_read_once(stage.nodes):
        if isinstance(node, KeyNode):
            vertices.append(Vertex(node, ()))
        else:
            last = vertices[-1]
            vertices[-1] = Vertex(last.key, (*last.functions, node))
    _require_keys(vertices)
    _require_broadcasts(vertices)
    _require_outputs(stage)
    is_first_empty = not vertices[0].functions and len(vertices) > 1
    return tuple(vertices[1:] if is_first_empty else vertices)


def _with_results_read_once(nodes: Sequence[Node]) -> list[Node]:
    """
    Let aggregates of aggregates read the results at the end of the input.

    A result that changes later would otherwise be added to its earlier value.
    """
    planned = list(nodes)
    first: int | None = None
    for position, node in enumerate(nodes):
        if isinstance(node, AggregateNode):
            if first is not None:
                planned[first] = replace(cast("AggregateNode", planned[first]), emits_changes=False)
                planned[position] = replace(node, reads_results=True)
            first = position
        elif not isinstance(node, KeyNode) and _may_have_state(node, nodes[position - 1]):
            first = None
    return planned


def _may_have_state(node: Node, before: Node) -> bool:
    if not isinstance(node, MapNode) or isinstance(node.function, CheckpointedFunction):
        return True
    return isinstance(before, KeyNode) and isinstance(node.function, RichFunction)


def _require_types(stage: Stage) -> None:
    for name in ("parallelism", "max_parallelism"):
        if getattr(stage, name) is not None:
            require_count(name, getattr(stage, name))
    broadcasts = [node.broadcast.source for node in stage.nodes if isinstance(node, KeyNode) and node.broadcast]
    for kind, end in ((Source, stage.input), *((Source, each) for each in broadcasts), (Sink, stage.output)):
        if end is not None and (isinstance(end, type | PathLike) or not isinstance(end, kind)):
            name, found = kind.__name__, f"the class {end.__name__}" if isinstance(end, type) else type(end).__name__
            raise InvalidConfigurationError(
                f"Expected a {name.lower()} of a stage, such as Parquet{name}('/data/x'), found {found}; pass an "
                "object."
            )


def _require_keys(vertices: list[Vertex]) -> None:
    for vertex in vertices:
        if vertex.key is not None and not vertex.functions:
            raise InvalidConfigurationError(
                f"Expected a function after key_by{vertex.key.columns}, found none; add process, aggregate or map."
            )
        for position, node in enumerate(vertex.functions):
            if not isinstance(node, MapNode) and (vertex.key is None or position > 0):
                raise InvalidConfigurationError(
                    f"Expected key_by directly before the function {node.uid!r} with keyed state, found none; add it."
                )


def _require_broadcasts(vertices: list[Vertex]) -> None:
    for vertex in vertices:
        is_declared = vertex.key is not None and vertex.key.broadcast is not None
        for node in vertex.functions:
            is_wanted = isinstance(node, ProcessNode) and isinstance(node.function, KeyedBroadcastProcessFunction)
            if is_wanted is not (is_declared and node is vertex.functions[0]):
                raise InvalidConfigurationError(
                    f"Expected broadcast(source, ...) exactly before a KeyedBroadcastProcessFunction, found "
                    f"{'a broadcast before another function' if is_declared else 'none'} at {node.uid!r}."
                )
            is_declared = False


def _require_outputs(stage: Stage) -> None:
    for position, node in enumerate(stage.nodes):
        is_read = position + 1 < len(stage.nodes) or stage.output is not None
        if isinstance(node, ProcessNode) and node.output is None and is_read:
            raise InvalidConfigurationError(
                f"Expected output columns of {node.uid!r}, whose output is read, found none; set output=, such as "
                "output='account string, balance double'."
            )


class StagePlanner:
    """
    Derives the columns of a stage, function by function.

    :param spark: Session that parses DDL and resolves expressions.
    :param stage_uid: Uid of the stage within its job.
    """

    def __init__(self, spark: SparkSession, stage_uid: str) -> None:
        self._spark = spark
        self._stage_uid = stage_uid
        self._is_case_sensitive = is_case_sensitive(spark)

    def plan(self, vertices: Sequence[Vertex], columns: StructType) -> tuple[PlannedVertex, ...]:
        """
        Return the vertices with their columns.

        :param columns: Columns of the source.
        :raises InvalidConfigurationError: if a column does not exist, its name is reserved, or an output declaration is
            not a schema.
        :raises UnsupportedStateError: if a column of a key has an unsupported type.
        """
        planned: list[PlannedVertex] = []
        # Later rows may have null where the first ones have none.
        schema = nullable_schema(columns)
        require_free_names(schema.names, "the source")
        for vertex in vertices:
            vertex_plan, schema = self._plan_vertex(vertex, schema)
            planned.append(vertex_plan)
        return tuple(planned)

    def _plan_vertex(self, vertex: Vertex, schema: StructType) -> tuple[PlannedVertex, StructType]:
        _require_columns(vertex, schema, is_case_sensitive=self._is_case_sensitive)
        functions: list[PlannedNode] = []
        output = arrow_schema(schema)
        for position, node in enumerate(vertex.functions):
            key = vertex.key if position == 0 else None
            functions.append(self._plan_function(self._with_columns(node, schema), key, schema))
            output, schema = functions[-1].output_schema, self._schema_after(functions[-1], schema)
        return PlannedVertex(key=vertex.key, functions=tuple(functions), output_schema=output), schema

    def _plan_function(self, node: FunctionNode, key: KeyNode | None, schema: StructType) -> PlannedNode:
        serializer = None if key is None else key_serializer_of(_empty(self._spark, schema), key.columns, key.aliases)
        output = self._output_schema(node, key, schema)
        return PlannedNode(
            uid=f"{self._stage_uid}/{node.uid}",
            node=node,
            output_schema=output,
            key_serializer=serializer,
            time_column=None if key is None else _time_column(key, schema),
            broadcast_states=() if key is None or key.broadcast is None else key.broadcast.states,
            aggregates=self._aggregates(node, schema, output) if isinstance(node, AggregateNode) else (),
            is_ansi=is_on(self._spark, "spark.sql.ansi.enabled"),
            is_case_sensitive=self._is_case_sensitive,
            time_zone=str(self._spark.conf.get("spark.sql.session.timeZone")),
        )

    def _with_columns(self, node: FunctionNode, schema: StructType) -> FunctionNode:
        """Return aggregates with quoted names of columns that Spark would otherwise not find."""
        if not isinstance(node, AggregateNode) or not {a.expression for a in node.aggregates.values()} & set(
            schema.names
        ):
            return node
        frame = _empty(self._spark, schema)
        found = {name: _with_column(frame, aggregate) for name, aggregate in node.aggregates.items()}
        return replace(node, aggregates=found)

    def _aggregates(self, node: AggregateNode, schema: StructType, output: Any) -> tuple[AggregateSchema, ...]:
        frame = _empty(self._spark, schema)
        return tuple(
            AggregateSchema(
                name=name,
                is_nullable=output.field(name).nullable,
                function=aggregate.spark_function,
                combine=aggregate.combine,
                expression=aggregate.expression,
                analyzed=expression_text(frame, aggregate.expression),
                of_results=node.reads_results,
            )
            for name, aggregate in node.aggregates.items()
        )

    def _schema_after(self, function: PlannedNode, schema: StructType) -> StructType:
        from pyspark.sql.types import StructType

        # Arrow knows less about types: it has no collations.
        declared = None if isinstance(function.node, AggregateNode) else function.node.output
        if isinstance(declared, str | StructType):
            return _parse_ddl(self._spark, declared, function.uid) if isinstance(declared, str) else declared
        is_passed_on = isinstance(function.node, MapNode) and declared is None
        return schema if is_passed_on or function.output_schema is None else spark_schema(function.output_schema)

    def _output_schema(self, node: FunctionNode, key: KeyNode | None, schema: StructType) -> Any:
        if isinstance(node, AggregateNode):
            return result_schema(_empty(self._spark, schema), cast("KeyNode", key), node)
        if node.output is None:
            return arrow_schema(schema) if isinstance(node, MapNode) else None
        declared = arrow_schema_of(self._spark, node.output, node.uid)
        require_free_names(declared.names, f"output= of {node.uid!r}")
        return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVertex:
    """A vertex with its output columns."""

    key: KeyNode | None
    functions: tuple[PlannedNode, ...]
    output_schema: Any
    """Arrow schema of the output of the last function; that of the input if there is no function."""

    @property
    def has_fixed_subtasks(self) -> bool:
        """Whether the subtasks have state or an end, which requires exactly as many partitions as the parallelism."""
        return self.key is not None or self.ends_without_rows or self._has(CheckpointedFunction)

    @property
    def ends_without_rows(self) -> bool:
        """Whether subtasks without a key must run at the end of the input, with or without rows."""
        return self.key is None and self._has(BoundedOneInput)

    def _has(self, kind: type) -> bool:
        return any(isinstance(each.node, MapNode) and isinstance(each.node.function, kind) for each in self.functions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A function with its output columns."""

    uid: str
    """Uid within the job."""
    node: FunctionNode
    output_schema: Any
    """Arrow schema of the output; ``None`` if the function emits nothing."""
    key_serializer: KeySerializer | None = None
    """Serializer of the key, for a function directly after ``key_by``."""
    time_column: str | None = None
    """Column with the timestamp of an element: the first ordering column, if it is a timestamp."""
    broadcast_states: tuple[MapStateDescriptor[Any], ...] = ()
    """Descriptors of broadcast states."""
    aggregates: tuple[AggregateSchema, ...] = ()
    """Declared aggregates, with the names under which restored state has them."""
    is_ansi: bool = True
    """Whether a sum that is too large is an error, as Spark decides by ``spark.sql.ansi.enabled``."""
    is_case_sensitive: bool = False
    """Whether names of emitted values match those of columns only in the same case."""
    time_zone: str = "UTC"
    """Time zone of the session, in which Spark reads times without one as timestamps."""

    @property
    def decimal_sums(self) -> tuple[str, ...]:
        """The names of the sums of decimals."""
        declared = self.node.aggregates if isinstance(self.node, AggregateNode) else {}
        sums = [name for name, aggregate in declared.items() if aggregate.combine == "sum"]
        return tuple(name for name in sums if pa.types.is_decimal(self.output_schema.field(name).type))

    @property
    def adds_partials(self) -> bool:
        """Whether it adds partial results to state without reading it, and reads them all at the end of the input."""
        # Spark gives a sum ten digits more than its values have, up to the most of a type. A sum that can exceed its
        # type has a flag, which the combination of its parts cannot write.
        kinds = (self.output_schema.field(name).type for name in self.decimal_sums)
        may_be_too_large = any(kind.precision >= _MOST_DIGITS for kind in kinds)
        return isinstance(self.node, AggregateNode) and not self.node.emits_changes and not may_be_too_large

    @property
    def reads_results(self) -> bool:
        """
        Whether it aggregates the results of another aggregate.

        It reads them all in each run, and needs no earlier state.
        """
        return isinstance(self.node, AggregateNode) and self.node.reads_results

    @property
    def operator_id(self) -> OperatorId:
        """The ID under which checkpoints store its state."""
        return operator_id_of(self.uid)


def arrow_schema_of(spark: SparkSession, declared: Any, uid: str) -> Any:
    """
    Convert the output columns of a function to an Arrow schema.

    :param declared: Value of ``output=``: DDL, an Arrow or Spark schema, or a dataclass.
    :param uid: Uid of the function, for the error message.
    :raises InvalidConfigurationError: if the value is not a schema.
    """
    from pyspark.sql.types import StructType

    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, StructType):
        return arrow_schema(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        from airflow_provider_statecheck.state.serializers.resolve import serializer_of

        return pa.schema(list(serializer_of(declared).arrow_type))
    if isinstance(declared, str):
        return arrow_schema(_parse_ddl(spark, declared, uid))
    raise InvalidConfigurationError(
        f"Expected output= of {uid!r} to be DDL, a schema of Spark or Arrow, or a dataclass, found {declared!r}."
    )


def _parse_ddl(spark: SparkSession, ddl: str, uid: str) -> StructType:
    from pyspark.errors import PySparkException

    try:
        return spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        raise InvalidConfigurationError(
            f"Expected output= of {uid!r} to be columns such as 'account string, balance double', found {ddl!r}: "
            f"{error}"
        ) from error


def _time_column(key: KeyNode, schema: StructType) -> str | None:
    from pyspark.sql.types import TimestampNTZType, TimestampType

    first = key.order_by[0] if key.order_by else None
    return first if first and isinstance(schema[first].dataType, TimestampType | TimestampNTZType) else None


def _empty(spark: SparkSession, schema: StructType) -> DataFrame:
    return spark.createDataFrame([], schema)


def _require_columns(vertex: Vertex, schema: StructType, *, is_case_sensitive: bool) -> None:
    required = () if vertex.key is None else (*vertex.key.columns, *vertex.key.order_by)
    missing = [name for name in required if schema.names.count(name) != 1]
    if missing:
        raise InvalidConfigurationError(
            f"Expected each column of key_by exactly once in {schema.names}, found {missing} missing or repeated; "
            "correct key_by or the output columns before it."
        )
    lower = [name.lower() for name in schema.names]
    ambiguous = [] if is_case_sensitive else [name for name in required if lower.count(name.lower()) > 1]
    if ambiguous:
        raise InvalidConfigurationError(
            f"Expected columns of key_by that Spark tells from the others in {schema.names}, found {ambiguous}, whose "
            "names differ from another one only in case; rename one of them, or set spark.sql.caseSensitive."
        )
    _require_ordered_types(vertex, schema)


def _require_ordered_types(vertex: Vertex, schema: StructType) -> None:
    for name in () if vertex.key is None else vertex.key.order_by:
        part = uncompared_part(schema[name].dataType)
        if part is not None:
            raise UnsupportedStateError(
                f"Expected order_by of a type whose values Spark tasks compare as Spark does, found {name} with "
                f"{part.simpleString()}; order by another column, such as a number, or collate(name, 'UTF8_BINARY') of "
                "a text with a collation."
            )


def require_free_names(names: Sequence[str], place: str) -> None:
    """
    Require columns that do not have names of a stage.

    :param place: Where the columns are, for the error.
    :raises InvalidConfigurationError: if one has.
    """
    taken = [name for name in names if name.lower().startswith(RESERVED_PREFIX)]
    if taken:
        raise InvalidConfigurationError(
            f"Expected names of columns of {place} that do not begin with {RESERVED_PREFIX!r}, which the stage uses "
            f"itself, found {taken}; rename them."
        )


def _with_column(frame: DataFrame, aggregate: Aggregate) -> Aggregate:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    if aggregate.expression not in frame.columns:
        return aggregate
    try:
        frame.select(F.expr(aggregate.expression))
    except PySparkException:
        # A name with a space, a dot or a quote, or that is a word of SQL, is no expression.
        return replace(aggregate, expression=quoted(aggregate.expression))
    return aggregate


def load_stage(stage: str | Stage, *, parallelism: int | None = None) -> Stage:
    """
    Load and validate a stage.

    :param stage: The stage, or its location as ``module:attribute``; a callable at the location is called and returns
        it.
    :param parallelism: Number of subtasks, instead of the stage's own.
    :raises InvalidConfigurationError: if there is no stage, or its steps do not fit together.
    """
    found = stage if isinstance(stage, Stage) else _import_stage(stage)
    if parallelism is not None:
        found = replace(found, parallelism=parallelism)
    vertices_of(found)
    return found


def _import_stage(location: object) -> Stage:
    if not isinstance(location, str):
        raise InvalidConfigurationError(
            f"Expected a Stage, or its location as module:attribute, found {type(location).__name__}."
        )
    found = _import_attribute(location)
    stage = found() if callable(found) else found
    if not isinstance(stage, Stage):
        raise InvalidConfigurationError(f"Expected a Stage at {location!r}, found {type(stage).__name__}.")
    return stage


def _import_attribute(location: str) -> Any:
    module, _, attribute = location.partition(":")
    if not module or not attribute:
        raise InvalidConfigurationError(f"Expected the location of a stage as module:attribute, found {location!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigurationError(
            f"Expected a stage at {location!r}, found none: {error}. Make the module importable where the stage runs: "
            "put it below the Dags folder, install it, or send it with the application."
        ) from error


RESERVED_PREFIX = "__statecheck_"
"""Prefix of the names of columns that a stage adds to rows between Spark tasks."""
KEY_GROUP_COLUMN = "__statecheck_key_group"
"""Column of the key group, an int from 0 to below the maximum parallelism."""
SUBTASK_COLUMN = "__statecheck_subtask"
"""Column of the index of the subtask that owns the key group, an int."""


def key_serializer_of(
    df: DataFrame, key_columns: Sequence[str], aliases: Mapping[str, tuple[str, ...]] | None = None
) -> KeySerializer:
    """
    Return the serializer of the key in columns of a DataFrame.

    :param aliases: Former names of columns.
    :raises InvalidConfigurationError: if there are no key columns, or one does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    fields = {}
    for name in key_columns:
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if len(found) != 1:
            raise InvalidConfigurationError(
                f"Expected the key column {name} once in the input, found it {len(found)} times in {df.columns}; "
                "select or rename columns of the input."
            )
        fields[name] = KeyField(name, _arrow_type(name, found[0]), (aliases or {}).get(name, ()))
    if len(fields) < len(key_columns):
        raise InvalidConfigurationError(
            f"Expected different key columns, found {list(key_columns)}; name each column once."
        )
    return KeySerializer(tuple(fields.values()))


def with_key_groups(df: DataFrame, key_columns: Sequence[str], max_parallelism: int, parallelism: int) -> DataFrame:
    """
    Return a DataFrame with the key group and the subtask of each row as its last columns.

    Rows with a null key also get a key group; the subtask rejects them.

    :raises InvalidConfigurationError: for a parallelism out of range, or a key column that does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    from pyspark.sql import functions as F

    require_parallelism(parallelism, max_parallelism)
    key_serializer_of(df, key_columns)
    hashed = F.xxhash64(*(quoted_column(name) for name in key_columns))
    key_group = F.pmod(hashed, F.lit(max_parallelism)).cast("int")
    subtask = F.call_function("div", F.col(KEY_GROUP_COLUMN) * parallelism, F.lit(max_parallelism)).cast("int")
    return df.select("*", key_group.alias(KEY_GROUP_COLUMN)).select("*", subtask.alias(SUBTASK_COLUMN))


def shuffled(df: DataFrame, key_columns: Sequence[str], max_parallelism: int, parallelism: int) -> DataFrame:
    """
    Return a DataFrame with the key group of each row, whose partition i contains the rows of subtask i.

    :raises InvalidConfigurationError: for a parallelism out of range, or a key column that does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    keyed = with_key_groups(df, key_columns, max_parallelism, parallelism)
    return repartition_by_id(keyed, parallelism, SUBTASK_COLUMN).drop(SUBTASK_COLUMN)


def _arrow_type(name: str, data_type: Any) -> Any:
    from pyspark.sql.types import StructField, StructType

    if is_plain_text(data_type):
        return pa.string()
    if data_type.typeName() not in PLAIN_TYPES:
        raise UnsupportedStateError(
            f"Expected a key column of a type whose equal values have equal bytes, found {name} of type "
            f"{data_type.simpleString()}; convert it to a simple type, such as a string."
        )
    return arrow_schema(StructType([StructField(name, data_type)])).field(name).type
