"""
Maintain the operators of each aircraft as a slowly changing dimension of type 2.

The table has a row for each period in which an aircraft had the same operator, with the start and the end of the
period. The state contains the current row. When the operator changes, the stage updates that row with its end and
inserts a new row.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag
from typing_extensions import override

# [START howto_slowly_changing_dimension]
from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    DataFrameSource,
    KeyedProcessFunction,
    SqlSink,
    Stage,
    ValueStateDescriptor,
)

FLIGHTS, WAREHOUSE, STAGING = "data/flights/flights.csv", "sqlite:///data/warehouse.db", "data/staging"


def flights(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and tailnum is not null").select("tailnum", "carrier", "time_hour")


class History(KeyedProcessFunction[str, Any, Any]):
    """End the current version and start the next one when the operator changes."""

    @override
    def open(self, runtime_context: Any) -> None:
        self.current = runtime_context.get_state(ValueStateDescriptor("current", tuple[datetime, str]))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        since, carrier = self.current.value() or (None, None)
        if carrier == value.carrier:
            return
        if since is not None:
            yield value.tailnum, since, value.time_hour, carrier
        self.current.update((value.time_hour, value.carrier))
        yield value.tailnum, value.time_hour, None, value.carrier


VERSION = "tailnum string, valid_from timestamp, valid_to timestamp, carrier string"
stage = (
    Stage("operators", max_parallelism=128)
    .source(DataFrameSource(range(1, 13), flights))
    .key_by("tailnum", order_by="time_hour")
    .process(History(), uid="history", output=VERSION)
    .sink(SqlSink(WAREHOUSE, "aircraft_operators", staging=STAGING, upsert_by=("tailnum", "valid_from")))
)


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_slowly_changing_dimension() -> None:
    CheckpointedStageOperator(task_id="operators", stage=stage, retries=2, retry_delay=timedelta(seconds=1))


# [END howto_slowly_changing_dimension]

example_slowly_changing_dimension()
