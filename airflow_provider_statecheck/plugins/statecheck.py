"""The plugin, which Airflow loads through its entry point."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_statecheck.gateway.protocol import MOUNT_PATH


class StatecheckPlugin(AirflowPlugin):
    """Adds the coordinator's API, the last line of a failed try, and what the end of a run means for its checkpoints."""

    name = "statecheck"

    # Every Airflow process loads the plugin; what one of them needs alone is imported when it asks for it.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the API."""
        from airflow_provider_statecheck.api.airflow_app import create_airflow_app

        return [{"app": create_airflow_app(), "url_prefix": MOUNT_PATH, "name": "statecheck"}]

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """Return the module with the listeners of failed tasks and ended runs."""
        from airflow_provider_statecheck.plugins import listeners

        return [listeners]
