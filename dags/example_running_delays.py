"""
Follow each aircraft through a year of flights; a try that fails goes on with the month in which it was.

A stage with state reads the year month by month. For each aircraft it remembers how late its last leg arrived and how
many minutes it has lost so far, and it gives one row for each flight. Behind each month there is a checkpoint of what is
read, of the state of all aircraft, and of the output. Fail the task at any point: the retry has all three again, and each
flight is counted and written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag
from typing_extensions import override

# [START howto_checkpointed_stage]
from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    DataFrameSource,
    KeyedProcessFunction,
    ParquetSink,
    Stage,
    ValueStateDescriptor,
)

FLIGHTS, REPORT = "data/flights/flights.csv", "data/running_delays"


def flights(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and tailnum is not null").select(
        "tailnum", "time_hour", "sched_dep_time", "flight", "origin", "dest", "arr_delay"
    )


class RunningDelay(KeyedProcessFunction[str, Any, Any]):
    """Gives each flight with what its aircraft went through before."""

    @override
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", float))
        self.lost = runtime_context.get_state(ValueStateDescriptor("lost", float, 0.0))
        self.legs = runtime_context.get_state(ValueStateDescriptor("legs", int, 0))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        yield value.tailnum, value.time_hour, value.flight, self.legs.value(), self.last.value(), self.lost.value()
        self.legs.update(self.legs.value() + 1)
        if value.arr_delay is not None:
            self.last.update(float(value.arr_delay))
            self.lost.update(self.lost.value() + max(0.0, float(value.arr_delay)))


OUTPUT = "tailnum string, time_hour timestamp, flight int, legs bigint, inherited double, lost double"
stage = (
    Stage("running_delays", max_parallelism=128)
    .source(DataFrameSource(range(1, 13), flights))
    .key_by("tailnum", order_by=("time_hour", "sched_dep_time", "flight"))
    .process(RunningDelay(), uid="delays", output=OUTPUT)
    .sink(ParquetSink(REPORT))
)


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_running_delays() -> None:
    CheckpointedStageOperator(task_id="delays", stage=stage, retries=2, retry_delay=timedelta(seconds=1))


# [END howto_checkpointed_stage]

example_running_delays()
