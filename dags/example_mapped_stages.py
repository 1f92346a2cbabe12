"""
Run one stage for each airport of New York.

The three stages are instances of one mapped task. The state of an instance belongs to its key, not to its position in
the list, which lets you add and remove airports. Each instance fails and resumes independently.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from airflow.sdk import dag

# [START howto_mapped_stages]
from airflow_provider_statecheck import CheckpointedStageOperator, Count, DataFrameSource, Max, ParquetSink, Stage

FLIGHTS, ROUTES = "data/flights/flights.csv", "data/routes"
AIRPORTS = ("EWR", "JFK", "LGA")
QUARTERS = ((1, 3), (4, 6), (7, 9), (10, 12))


def departures(airport: str, spark: Any, months: tuple[int, int]) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"origin = '{airport}' and month between {months[0]} and {months[1]}")


def routes_from(airport: str) -> Stage:
    return (
        Stage("routes", max_parallelism=128)
        .source(DataFrameSource(QUARTERS, partial(departures, airport)))
        .key_by("dest")
        .aggregate(flights=Count(), late=Count("nullif(arr_delay > 15, false)"), worst=Max("arr_delay"))
        .sink(ParquetSink(f"{ROUTES}/origin={airport}"))
    )


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_mapped_stages() -> None:
    routes = CheckpointedStageOperator.partial(task_id="routes", retries=2, retry_delay=timedelta(seconds=1))
    routes.expand_kwargs([{"stage": routes_from(airport), "map_key": airport} for airport in AIRPORTS])


# [END howto_mapped_stages]

example_mapped_stages()
