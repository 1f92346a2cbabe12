"""Listeners for the end of Dag runs and for failed tries."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_provider_statecheck.checkpoint.properties import JobStatus

log = logging.getLogger(__name__)

_BY_A_PERSON = "manually set"
"""What Airflow says of a run whose state somebody changed."""


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """End what does not stay after a success."""
    _settle(dag_run, JobStatus.FINISHED)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """End what does not stay after a failure, or after somebody marked the run as failed."""
    _settle(dag_run, JobStatus.CANCELED if _BY_A_PERSON in (msg or "") else JobStatus.FAILED)


def _settle(dag_run: Any, status: JobStatus) -> None:
    try:
        if not _is_test(dag_run):
            from airflow_provider_statecheck.api.airflow_services import settle_ended_run

            settle_ended_run(dag_run, status)
    except Exception:
        # The scheduler has more to do than this, and garbage collection makes up for it.
        log.warning("Checkpoints of an ended run stay until garbage collection", exc_info=True)


def _is_test(dag_run: Any) -> bool:
    # A test of a Dag may bear the date of a real run, whose job it must not touch.
    from airflow.utils.types import DagRunTriggeredByType

    return bool(dag_run.triggered_by == DagRunTriggeredByType.TEST)


@hookimpl
def on_task_instance_failed(task_instance: Any) -> None:
    """Repeat what the stage said when it was closed."""
    kept = getattr(getattr(task_instance, "task", None), "kept", None)
    if isinstance(kept, str):
        log.error("%s", kept)
