"""The plugin, which Airflow loads through its entry point."""

from __future__ import annotations

from airflow.sdk.plugins_manager import AirflowPlugin


class StatecheckPlugin(AirflowPlugin):
    """Makes the provider known to the plugin manager."""

    name = "statecheck"
