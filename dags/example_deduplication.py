"""
Deduplicate flights that are delivered several times.

Files arrive in a folder, and some contain rows of earlier files. Each run reads the new files and emits the flights
that it sees for the first time. The state of a flight expires after sixty days by the dates of the runs, which limits
the size of the state.
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
    """Emit the first row of each key."""

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
