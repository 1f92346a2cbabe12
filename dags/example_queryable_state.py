"""
Ask for the hours of a few aircraft in the state of a stage, without its output and without Spark.

A stateful stage adds up the hours that each aircraft has flown. Its state has a queryable name, so a later task,
another Dag or a service reads the entry of one aircraft from the latest completed checkpoint in milliseconds. An answer
is available as soon as the first checkpoint of the stage is complete, while the stage still runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task
from typing_extensions import override

# [START howto_queryable_state]
from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    DataFrameSource,
    KeyedProcessFunction,
    Stage,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook

FLIGHTS, CHECKS = "data/flights/flights.csv", "data/aircraft_checks.json"
FLEET, HOURS_TO_A_CHECK = ("N935AT", "N978AT", "N293PQ", "N14228"), 120


def flights(spark: Any, month: int) -> Any:
    year = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
    return year.where(f"month = {month} and tailnum is not null and air_time is not null")


class HoursFlown(KeyedProcessFunction[str, Any, Any]):
    """Add up the hours of each aircraft."""

    @override
    def open(self, runtime_context: Any) -> None:
        hours = ValueStateDescriptor("hours", float, 0.0, queryable_name="hours_flown")
        self.hours = runtime_context.get_state(hours)

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        self.hours.update(self.hours.value() + value.air_time / 60)
        yield from ()


stage = (
    Stage("aircraft", max_parallelism=128)
    .source(DataFrameSource(range(1, 13), flights))
    .key_by("tailnum")
    .process(HoursFlown(), uid="hours", output="tailnum string")
)


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_queryable_state() -> None:
    aircraft = CheckpointedStageOperator(
        task_id="aircraft", stage=stage, job="aircraft", retries=2, retry_delay=timedelta(seconds=1)
    )

    @task
    def due_for_a_check() -> list[str]:
        hours = StatecheckHook().query_states("aircraft", "hours_flown", FLEET).found
        due = sorted(tailnum for tailnum, flown in hours.items() if flown > HOURS_TO_A_CHECK)
        Path(CHECKS).write_text(json.dumps(due))
        return due

    aircraft >> due_for_a_check()


# [END howto_queryable_state]

example_queryable_state()
