"""Airflow plugin of this provider."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_statecheck.gateway.verbs import JOB_PAGES, MOUNT_PATH

_TASK = "/dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}?map_index={MAP_INDEX}"
_VIEWS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("nav", "statecheck-jobs", JOB_PAGES, {"category": "browse"}),
    ("dag", "statecheck-dag", "/dags/{DAG_ID}", {}),
    ("dag_run", "statecheck-run", "/dags/{DAG_ID}/runs/{RUN_ID}", {}),
    ("task_instance", "statecheck-task", _TASK, {}),
)
"""Destination, route, path and options of each view. A route must be unique among all plugins."""


class StatecheckPlugin(AirflowPlugin):
    """Adds the coordinator's API and its pages, and listeners for ended runs and failed task instances."""

    name = "statecheck"

    # Every Airflow process loads the plugin, so the properties import the modules that only some processes need.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the app of the API."""
        from airflow_provider_statecheck.api.airflow_app import create_airflow_app
        from airflow_provider_statecheck.hooks.connection import storage_opener

        # The settings of the storage are read when a checkpoint is opened.
        app = create_airflow_app(lambda pointer: storage_opener()(pointer))
        return [{"app": app, "url_prefix": MOUNT_PATH, "name": "statecheck"}]

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """Return the module with the listeners."""
        from airflow_provider_statecheck.plugins import listeners

        return [listeners]

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the views in the navigation, and the tabs of Dags, runs and task instances."""
        from airflow_provider_statecheck.operators.links import pages_root

        # Pages in frames must have the origin of Airflow's page, so their addresses are paths.
        root = urlsplit(pages_root()).path
        icons = {"icon": f"{root}/static/checkpoints.svg", "icon_dark_mode": f"{root}/static/checkpoints-dark.svg"}
        return [
            {"name": "Checkpoints", "destination": place, "url_route": route, "href": f"{root}{path}"} | icons | options
            for place, route, path, options in _VIEWS
        ]
