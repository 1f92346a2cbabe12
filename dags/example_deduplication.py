"""
Let each flight through once, however often it is delivered.

Files arrive in a folder, and some repeat what was in earlier ones. Each run reads the files that no run has read yet, and
passes the flights on that it sees for the first time. A flight is remembered for sixty days, counted by the dates of the
runs, so the state does not grow for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag
from typing_extensions import override

# [START howto_deduplication]
from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    CsvSource,
    KeyedProcessFunction,
    ParquetSink,
    Stage,
    StateTtlConfig,
    ValueStateDescriptor,
)

DELIVERIES, FLIGHTS = "data/deliveries", "data/flights_once"
COLUMNS = "carrier string, flight int, origin string, dest string, time_hour timestamp, arr_delay int"


class FirstOfItsKind(KeyedProcessFunction[Any, Any, Any]):
    """Passes on what it has not seen yet."""

    @override
    def open(self, runtime_context: Any) -> None:
        sixty_days = StateTtlConfig(timedelta(days=60))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", bool, ttl=sixty_days))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if self.seen.value() is None:
            self.seen.update(True)
            yield value


stage = (
    Stage("flights_once", max_parallelism=128)
    .source(CsvSource(DELIVERIES, schema=COLUMNS, options={"header": True, "nullValue": "NA"}))
    .key_by("carrier", "flight", "origin", "time_hour")
    .process(FirstOfItsKind(), uid="first", output=COLUMNS)
    .sink(ParquetSink(FLIGHTS))
)


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_deduplication() -> None:
    CheckpointedStageOperator(
        task_id="flights_once", stage=stage, job="flights_once", retries=2, retry_delay=timedelta(seconds=1)
    )


# [END howto_deduplication]

example_deduplication()
