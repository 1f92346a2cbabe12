"""A stage without Spark whose state is the list of the runs that it has counted, in runs of every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, PartitionedAtRuntime
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.hooks.transport import airflow_gateway
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
PAUSE = timedelta(seconds=10)
"""Airflow fails a task that is due again before its executor has reported the end of the first process."""


class Count(CheckpointedOperator):
    """Counts its run; fails, defers or is rescheduled after its checkpoint where the conf of the run says so."""

    template_fields = ("job",)

    def execute(self, context: Mapping[str, Any]) -> list[str]:
        return self._count(context)

    def resume(self, context: Mapping[str, Any], event: Any) -> list[str]:
        return self._count(context)

    def _count(self, context: Mapping[str, Any]) -> list[str]:
        prepared = self.prepare(context)
        attempt = StageAttempt(
            airflow_gateway(), prepared.storage, prepared.registration, on_overlap=prepared.on_overlap
        )
        runs = _counted(attempt)
        conf = context["dag_run"].conf or {}
        if "note" in conf:
            with Path(conf["note"]).open("a") as notes:
                notes.write(json.dumps([attempt.grant.start_reason, runs]) + "\n")
        own = prepared.registration.owner.run_key
        if runs[-1:] != [own]:
            runs = [*runs, own]
            attempt.take_checkpoint(CheckpointContent(state={"runs": runs}))
            self._leave(attempt, conf, context)
        attempt.finish(AttemptStatus.FINISHED)
        return runs

    def _leave(self, attempt: StageAttempt, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        how = conf.get("leaves")
        if how is None:
            return
        attempt.finish(AttemptStatus.FAILED)
        if how == "defers":
            self.defer(trigger=TimeDeltaTrigger(PAUSE), method_name="resume")
        if how == "is rescheduled":
            raise AirflowRescheduleException(datetime.now(UTC) + PAUSE)
        raise RuntimeError("planned")


def _counted(attempt: StageAttempt) -> list[str]:
    restored = attempt.restore()
    return [] if restored is None else list(restored.state["runs"])


def days(dag_id: str, **arguments: Any) -> DAG:
    # The schedule begins one run by itself, which has a job of its own.
    with DAG(dag_id, schedule="@daily", start_date=START, end_date=END, catchup=False) as dag:
        Count(task_id="work", job=dag_id + " {{ dag_run.run_type.value }}", uid="work", **arguments)
    return dag


waiting = days("live_days_waiting", on_overlap="wait")
failing = days("live_days_failing", retries=0)
with DAG("live_undated", schedule=None, start_date=START, catchup=False) as undated:
    # The first task may find an api-server that is too busy to start it.
    Count(task_id="work", job="live_undated", retries=2, retry_delay=timedelta(0))
with DAG("live_task_state", schedule=None, start_date=START, catchup=False) as task_state:
    Count(task_id="work")
with DAG("live_partitions", schedule=PartitionedAtRuntime(), start_date=START, catchup=False) as partitions:
    Count(task_id="work", job="live_partitions")
