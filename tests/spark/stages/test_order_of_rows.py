"""The order in which the elements of a key reach a function, and the largest text whatever its case."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Max, Min, Stage
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from airflow_provider_statecheck.state.reading.state_reader import read_state
from tests.shared_spark import needs_spark, to_arrow
from tests.soak import rest_in_soak
from tests.spark.stages.aggregate_cases import COLUMNS, drawn, frame_of
from tests.spark.stages.stage_tries import StageTries


class Positions(KeyedProcessFunction[Any, Any, Any]):
    """Emits the number of each element with its position among those of its key."""

    def __init__(self) -> None:
        self._positions: dict[Any, int] = {}

    def process_element(self, value: Any, context: Any) -> Any:
        self._positions[value.k_flag] = self._positions.get(value.k_flag, -1) + 1
        yield value.n, self._positions[value.k_flag]


@pytest.mark.parametrize("column", rest_in_soak([n for n, c in COLUMNS.items() if Max in c.functions], "pairs"))
def test_elements_come_in_the_order_of_spark(spark: Any, tries: StageTries, column: str) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    table = drawn(random.Random(4), 80).select(["k_flag", column])
    frame = frame_of(spark, table.append_column("n", pa.array(range(80))))
    positions = F.row_number().over(Window.partitionBy("k_flag").orderBy(column, "n")) - 1
    expected = to_arrow(frame.select("n", positions.alias("position"))).sort_by("n").to_pylist()
    stage = Stage("stage").source(DataFrameSource([1], lambda spark, _: frame)).key_by("k_flag", order_by=(column, "n"))
    tries.run(stage.process(Positions(), output="n long, position int").sink(ParquetSink(str(tries.output))))
    assert sorted(tries.rows(), key=lambda row: row["n"]) == expected


@pytest.mark.soak
@needs_spark("4.0", "a collation")
def test_lower_case_in_front_of_a_text_gives_the_largest_text_whatever_its_case(spark: Any, tries: StageTries) -> None:
    texts = ["a", "B", "c", "Zürich", "zz", "ä", "É", "", "_"]
    columns = {"k": [i % 2 for i in range(len(texts))], "t": pa.array(texts)}
    frame = frame_of(spark, pa.table(columns)).selectExpr("k", "collate(t, 'UTF8_LCASE') AS name")
    pair = "struct(lower(collate(name, 'UTF8_BINARY')) AS lower, collate(name, 'UTF8_BINARY') AS name)"
    stage = Stage("stage").source(DataFrameSource([1], lambda spark, _: frame)).key_by("k")
    tries.run(stage.aggregate(low=Min(pair), high=Max(pair)))
    state = read_state(tries.completed()[-1].location, "aggregates").read_all().to_pylist()
    expected = (
        frame.groupBy("k")
        .agg({"name": "min"})
        .toDF("k", "low")
        .join(frame.groupBy("k").agg({"name": "max"}).toDF("k", "high"), "k")
    )
    assert {row["k"]: (row["value"]["low"]["name"], row["value"]["high"]["name"]) for row in state} == {
        row.k: (row.low, row.high) for row in expected.collect()
    }
