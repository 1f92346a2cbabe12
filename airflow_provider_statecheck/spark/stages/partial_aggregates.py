"""The rows of an aggregate before the shuffle: partial results, of single rows or combined in the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.stages.aggregates import Aggregate
from airflow_provider_statecheck.spark.stages.executor.columns import CONTROL
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, KeyNode
from airflow_provider_statecheck.spark.stages.output_schemas import spark_of_arrow
from airflow_provider_statecheck.spark.stages.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
