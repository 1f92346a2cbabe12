"""Dags of the Airflow tests that wait for a checkpoint which somebody else completes."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor

START = datetime(2026, 1, 1, tzinfo=UTC)


@task
def report(found: Any) -> None:
    (Path(os.environ["STAGE_WORK"]) / "found.json").write_text(json.dumps(found))


def waiting(**arguments: Any) -> None:
    sensor = CheckpointSensor(
        task_id="wait",
        job="{{ dag.dag_id }}/{{ logical_date.isoformat() }}",
        uid="{{ 'part' }}",
        map_key="north",
        at_least="{{ 1 + 1 }}",
        max_age=timedelta(hours=1),
        poke_interval=0.2,
        timeout=240,
        **arguments,
    )
    report(sensor.output)


@dag(schedule=None, start_date=START, catchup=False)
def poking() -> None:
    waiting(deferrable=False)


@dag(schedule=None, start_date=START, catchup=False)
def deferred() -> None:
    waiting(deferrable=True)


@dag(schedule=None, start_date=START, catchup=False)
def default() -> None:
    waiting()


poking()
deferred()
default()
