"""
Declaration of the provider for Airflow.

Every Airflow process loads this module, so it imports only the descriptions of the settings.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.settings import Place, settings_in

_INTEGRATION = "Statecheck"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's declaration."""
    return {
        "package-name": "airflow-provider-statecheck",
        "name": _INTEGRATION,
        "description": "Checkpointed batch pipelines: a failed Spark task resumes from its last completed checkpoint.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_statecheck.operators.amazon",
                    "airflow_provider_statecheck.operators.databricks",
                    "airflow_provider_statecheck.operators.google",
                    "airflow_provider_statecheck.operators.kubernetes",
                    "airflow_provider_statecheck.operators.livy",
                    "airflow_provider_statecheck.operators.pyspark",
                    "airflow_provider_statecheck.operators.spark_submit",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_statecheck.sensors.checkpoint"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_statecheck.triggers.checkpoint",
                    "airflow_provider_statecheck.triggers.mailbox",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_statecheck.hooks.statecheck"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "statecheck",
                "hook-class-name": "airflow_provider_statecheck.hooks.statecheck.StatecheckHook",
                "hook-name": "Statecheck coordinator",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port", "extra"],
                    "relabeling": {"host": "API URL"},
                    "placeholders": {
                        "host": "https://airflow.example.com",
                        "login": "an Airflow user, only if tasks cannot authenticate themselves",
                    },
                },
                "conn-fields": {
                    "timeout": {
                        "label": "Timeout (s)",
                        "description": "Maximum time to wait for a reply.",
                        "schema": {"type": ["integer", "null"], "default": 30, "minimum": 1},
                    }
                },
            }
        ],
        "task-decorators": [
            {
                "name": "checkpointed_spark",
                "class-name": "airflow_provider_statecheck.decorators.checkpointed_spark.checkpointed_spark_task",
            }
        ],
        "plugins": [
            {
                "name": "statecheck",
                "plugin-class": "airflow_provider_statecheck.plugins.statecheck.StatecheckPlugin",
            }
        ],
        "db-managers": ["airflow_provider_statecheck.metadata.db_manager.StatecheckDBManager"],
        "cli": ["airflow_provider_statecheck.cli.definition.get_statecheck_commands"],
        "config": {
            "statecheck": {
                "description": "Checkpoints of Spark tasks. An argument of an Airflow operator takes precedence over "
                "the option of the same name.",
                "options": {name: setting.option() for name, setting in settings_in(Place.SECTION).items()},
            }
        },
    }
