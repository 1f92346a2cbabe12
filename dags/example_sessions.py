"""
Group the departures of each aircraft from New York into sessions.

A session, here a stay, is a sequence of departures with less than a day between them. The stage reads the year month by
month. A stay that is open at the end of a month remains in the state, and all open stays are emitted at the end of
input.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag
from typing_extensions import override

# [START howto_sessions]
from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    DataFrameSource,
    KeyedProcessFunction,
    ParquetSink,
    Stage,
    ValueStateDescriptor,
)

FLIGHTS, STAYS = "data/flights/flights.csv", "data/stays"
GAP = timedelta(days=1)


def departures(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and tailnum is not null").select("tailnum", "time_hour")


class Stays(KeyedProcessFunction[str, Any, Any]):
    """Emit a stay when the next one starts or the input ends."""

    @override
    def open(self, runtime_context: Any) -> None:
        self.stay = runtime_context.get_state(ValueStateDescriptor("stay", tuple[datetime, datetime, int]))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        first, last, departures = self.stay.value() or (value.time_hour, value.time_hour, 0)
        if value.time_hour - last >= GAP:
            yield value.tailnum, first, last, departures
            first, departures = value.time_hour, 0
        self.stay.update((first, value.time_hour, departures + 1))

    @override
    def on_end_of_input(self, context: Any) -> Iterable[Any]:
        yield (context.current_key, *self.stay.value())
        self.stay.clear()


stage = (
    Stage("stays", max_parallelism=128)
    .source(DataFrameSource(range(1, 13), departures))
    .key_by("tailnum", order_by="time_hour")
    .process(Stays(), uid="stays", output="tailnum string, first timestamp, last timestamp, departures int")
    .sink(ParquetSink(STAYS))
)


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_sessions() -> None:
    CheckpointedStageOperator(task_id="stays", stage=stage, retries=2, retry_delay=timedelta(seconds=1))


# [END howto_sessions]

example_sessions()
