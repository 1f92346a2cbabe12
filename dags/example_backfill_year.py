"""
Backfill a year, month by month, with state across runs.

Each run reads the flights of its month and writes the flight hours since the start of the year for each aircraft that
flew. As it needs the hours of the previous months, the runs are processed in order, one at a time, and none after a
failed run.

`airflow backfill create --dag-id example_backfill_year --from-date 2013-01-01 --to-date 2013-12-01` creates the twelve
runs. They start when the Dag is unpaused.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context
from airflow.sdk.exceptions import AirflowFailException

# [START howto_backfill]
from airflow_provider_statecheck import CheckpointedStageOperator, Count, DataFrameSource, Max, ParquetSink, Stage, Sum

FLIGHTS, HOURS = "data/flights/flights.csv", "data/hours_flown"


def month_of_the_run() -> list[int]:
    date = get_current_context()["dag_run"].logical_date
    if date is None or date.year != 2013:
        # A run of today would end the year for the state, and no month of 2013 could run any more.
        raise AirflowFailException(f"Expected a month of 2013, found {date}; start this Dag as a backfill of 2013.")
    return [date.month]


def flights(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and air_time is not null")


stage = (
    Stage("hours", max_parallelism=128)
    .source(DataFrameSource(month_of_the_run, flights))
    .key_by("tailnum")
    .aggregate(month=Max("month"), flights=Count(), hours=Sum("air_time / 60"), emit="changes")
    .sink(ParquetSink(HOURS))
)


@dag(
    schedule="@monthly",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"depends_on_past": True},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_backfill_year() -> None:
    CheckpointedStageOperator(
        task_id="hours", stage=stage, job="hours_flown", retries=2, retry_delay=timedelta(seconds=1)
    )


# [END howto_backfill]

example_backfill_year()
