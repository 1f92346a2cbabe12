"""Listeners for ended Dag runs and failed task instances."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_provider_statecheck.checkpoint.properties import JobStatus, job_status_of

log = logging.getLogger(__name__)

_MANUALLY_SET = "manually set"
"""Part of Airflow's message if a user changed the state of the run."""


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """End the checkpoints that are not retained after a success."""
    _settle(dag_run, job_status_of("success"))


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """End the checkpoints that are not retained after a failure, or after a user marked the run as failed."""
    _settle(dag_run, job_status_of("failed", is_by_a_person=_MANUALLY_SET in (msg or "")))


def _settle(dag_run: Any, status: JobStatus) -> None:
    try:
        if not _is_test(dag_run):
            from airflow_provider_statecheck.api.airflow_services import settle_ended_run

            settle_ended_run(dag_run, status)
    except Exception:
        # An error must not stop the scheduler; the next garbage collection settles the run.
        log.warning("Checkpoints of an ended run are retained until the next garbage collection", exc_info=True)


def _is_test(dag_run: Any) -> bool:
    # A test of a Dag may have the date of a real run and must not end the checkpoints of its job.
    from airflow.utils.types import DagRunTriggeredByType

    return bool(dag_run.triggered_by == DagRunTriggeredByType.TEST)


@hookimpl
def on_task_instance_failed(task_instance: Any) -> None:
    """Log the summary of the stage again, as the last line of the failed try."""
    summary = getattr(getattr(task_instance, "task", None), "kept", None)
    if isinstance(summary, str):
        log.error("%s", summary)
