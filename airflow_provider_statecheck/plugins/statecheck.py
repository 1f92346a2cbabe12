"""Airflow plugin of this provider, and its listeners for ended Dag runs and failed task instances."""

from __future__ import annotations

import logging
import sys
from typing import Any
from urllib.parse import urlsplit

from airflow.listeners import hookimpl
from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_statecheck.checkpoint.properties import JobStatus, job_status_of
from airflow_provider_statecheck.gateway.verbs import JOB_PAGES, MOUNT_PATH

log = logging.getLogger(__name__)

_TASK = "/dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}?map_index={MAP_INDEX}"
_VIEWS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("nav", "statecheck-jobs", JOB_PAGES, {"category": "browse"}),
    ("dag", "statecheck-dag", "/dags/{DAG_ID}", {}),
    ("dag_run", "statecheck-run", "/dags/{DAG_ID}/runs/{RUN_ID}", {}),
    ("task_instance", "statecheck-task", _TASK, {}),
)
"""Destination, route, path and options of each view. A route must be unique among all plugins."""
_MANUALLY_SET = "manually set"
"""Part of Airflow's message if a user changed the state of the run."""


class StatecheckPlugin(AirflowPlugin):
    """Adds the coordinator's API and its pages, and listeners for ended runs and failed task instances."""

    name = "statecheck"

    # Every Airflow process loads the plugin, so the properties import the modules that only some processes need.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The app of the API."""
        from airflow_provider_statecheck.api.airflow_app import create_airflow_app
        from airflow_provider_statecheck.hooks.connection import guarded_storage_opener

        # The settings of the storage are read when a checkpoint is opened.
        app = create_airflow_app(lambda pointer: guarded_storage_opener()(pointer))
        return [{"app": app, "url_prefix": MOUNT_PATH, "name": "statecheck"}]

    @property
    def fastapi_root_middlewares(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The guard of the proofs of tasks, and the upgrade of the tables when the api-server starts."""
        from airflow_provider_statecheck.api.proof_guard import ProofGuard
        from airflow_provider_statecheck.api.table_upgrade import TableUpgrade

        middlewares = {"statecheck proofs of tasks": ProofGuard, "statecheck tables": TableUpgrade}
        return [{"middleware": each, "args": [], "kwargs": {}, "name": name} for name, each in middlewares.items()]

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """The module, which has the listeners."""
        return [sys.modules[__name__]]

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The views in the navigation, and the tabs of Dags, runs and task instances."""
        from airflow_provider_statecheck.operators.links import pages_root

        # Pages in frames must have the origin of Airflow's page, so their addresses are paths.
        root = urlsplit(pages_root()).path
        icons = {"icon": f"{root}/static/checkpoints.svg", "icon_dark_mode": f"{root}/static/checkpoints-dark.svg"}
        return [
            {"name": "Checkpoints", "destination": place, "url_route": route, "href": f"{root}{path}"} | icons | options
            for place, route, path, options in _VIEWS
        ]


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
def on_task_instance_failed(task_instance: Any, error: Any) -> None:
    """Let the attempt of the stage fail with its task, and log what it retains as the last line of the failed try."""
    task = getattr(task_instance, "task", None)
    fail = getattr(task, "fail_after_end", None)
    if fail is not None and isinstance(error, BaseException):
        fail(error)
    summary = getattr(task, "kept", None)
    if isinstance(summary, str):
        log.error("%s", summary)
