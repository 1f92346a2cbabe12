"""The plugin, which Airflow loads through its entry point."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_statecheck.gateway.http_client import MOUNT_PATH


class StatecheckPlugin(AirflowPlugin):
    """Adds the coordinator's API to the api-server."""

    name = "statecheck"

    # Every Airflow process loads the plugin, only the api-server asks for its apps.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the API."""
        from airflow_provider_statecheck.api.airflow_app import create_airflow_app

        return [{"app": create_airflow_app(), "url_prefix": MOUNT_PATH, "name": "statecheck"}]
