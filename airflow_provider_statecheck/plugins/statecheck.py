"""Airflow plugin of this provider."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_statecheck.gateway.protocol import MOUNT_PATH


class StatecheckPlugin(AirflowPlugin):
    """Adds the coordinator's API to the api-server, and listeners for ended runs and failed task instances."""

    name = "statecheck"

    # Every Airflow process loads the plugin, so the properties import the modules that only some processes need.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the app of the API."""
        from airflow_provider_statecheck.api.airflow_app import create_airflow_app

        return [{"app": create_airflow_app(), "url_prefix": MOUNT_PATH, "name": "statecheck"}]

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """Return the module with the listeners."""
        from airflow_provider_statecheck.plugins import listeners

        return [listeners]
