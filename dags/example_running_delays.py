"""
Accumulate the delays of each aircraft over a year of flights; a retry resumes with the month that failed.

A stateful stage reads the year month by month and writes one row for each flight. The state of an aircraft is the delay
of its last leg and its total delay. After each month, a checkpoint contains the position of the source, the state and
the output. Fail the task at any point: the retry restores all three, and each flight is counted and written exactly
once.
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
    """Emit each flight with the earlier delays of its aircraft."""

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
