"""
Results of declared aggregates in Spark, and the refusal of those that its tasks cannot combine.

Spark tasks combine partial results. What they would combine in another way than Spark is refused by its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.stages.ordered_types import is_plain_text, uncompared_part
from airflow_provider_statecheck.spark.stages.stage import Aggregate, AggregateNode, KeyNode
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, quoted_column, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


def aggregated(frame: DataFrame, key: KeyNode, node: AggregateNode, *further: Column) -> DataFrame:
    """
    Return the key columns and, under the name of each aggregate, its result, as Spark computes them.

    :param further: Further aggregates, for the last columns.
    """
    from pyspark.sql import functions as F

    columns = [
        getattr(F, aggregate.spark_function)(F.expr(aggregate.expression)).alias(name)
        for name, aggregate in node.aggregates.items()
    ]
    return frame.groupBy(*map(quoted_column, key.columns)).agg(*columns, *further)


def single_results(
    frame: DataFrame, key: KeyNode, node: AggregateNode, results: Any, names: Iterable[str], *carried: str
) -> DataFrame:
    """
    Return the key columns and the partial results of single rows.

    :param results: Arrow schema of the results.
    :param names: Aggregates of which the results are wanted.
    :param carried: Further columns.
    """
    from pyspark.sql import functions as F

    keys = [quoted_column(name) for name in key.columns]
    types = {field.name: field.dataType for field in spark_schema(results).fields}
    single = [_of_one_row(node.aggregates[name]).cast(types[name]).alias(name) for name in names]
    return frame.select(*keys, *single, *map(F.col, carried))


def _of_one_row(aggregate: Aggregate) -> Column:
    from pyspark.sql import functions as F

    value = F.expr(aggregate.expression)
    if aggregate.spark_function == "count":
        return F.when(value.isNull(), F.lit(0)).otherwise(F.lit(1))
    return value


def result_schema(frame: DataFrame, key: KeyNode, node: AggregateNode) -> Any:
    """
    Return the Arrow schema of the key columns and the aggregates.

    :param frame: A DataFrame with the input columns.
    :raises InvalidConfigurationError: if Spark cannot compute an aggregate, or its name is that of a key column.
    :raises UnsupportedStateError: if Spark tasks cannot combine partial results of its type.
    """
    clash = set(key.columns) & set(node.aggregates)
    if clash:
        raise InvalidConfigurationError(
            f"Expected names of aggregates that differ from the key columns, found {sorted(clash)}; rename them."
        )
    schema = _schema_in_spark(frame, key, node)
    for name in node.aggregates:
        _require_type(node, name, schema[name].dataType)
    # A part that is never null in one run may be null in the next.
    return pa.schema([field.with_type(_with_optional_parts(field.type)) for field in arrow_schema(schema)])


def _schema_in_spark(frame: DataFrame, key: KeyNode, node: AggregateNode) -> StructType:
    from pyspark.errors import PySparkException

    try:
        return aggregated(frame, key, node).schema
    except PySparkException as error:
        declared = ", ".join(f"{name}={each.text}" for name, each in node.aggregates.items())
        raise InvalidConfigurationError(
            f"Expected aggregates {node.uid!r} that Spark can compute, found {declared}: {str(error).splitlines()[0]} "
            "Correct the expressions."
        ) from error


def _require_type(node: AggregateNode, name: str, data_type: DataType) -> None:
    aggregate = node.aggregates[name]
    reason = next(_reasons(data_type), None)
    if reason is not None:
        raise UnsupportedStateError(
            f"Expected the aggregate {name}={aggregate.text} of {node.uid!r} to have a type that state can hold and "
            f"Spark tasks compare as Spark does, found {data_type.simpleString()}, {reason}."
        )


def _reasons(data_type: DataType) -> Iterator[str]:
    from pyspark.sql.types import StringType

    part = uncompared_part(data_type)
    if isinstance(part, StringType) and not is_plain_text(part):
        yield (
            "and tasks have no collations; convert the text, and put its lower case in front if case does not matter, "
            "as in Max(\"struct(lower(collate(name, 'UTF8_BINARY')) AS lower, collate(name, 'UTF8_BINARY') AS name)\")"
        )
    elif part is not None:
        yield f"with {part.simpleString()}; convert it, such as by cast(... AS string)"
    yield from _reasons_of_names(data_type)


def _reasons_of_names(data_type: DataType) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(data_type, ArrayType):
        yield from _reasons_of_names(data_type.elementType)
    elif isinstance(data_type, StructType):
        if len(set(data_type.names)) < max(len(data_type.names), 1):
            yield (
                "whose struct lacks fields or repeats their names; name each field, as in struct(a AS first, b AS "
                "second)"
            )
        for field in data_type.fields:
            yield from _reasons_of_names(field.dataType)


def _with_optional_parts(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_optional_parts(field.type)) for field in kind])
    return pa.list_(_with_optional_parts(kind.value_type)) if pa.types.is_list(kind) else kind
